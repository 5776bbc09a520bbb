-- read_rules.lua: reads which rules are in force, and what live workers report of their rules files.
-- KEYS  1   hash: the rules file, see `apply_rules.lua`
--       2   hash: reports of workers, see `report_rules.lua`
--       3   zset: live workers, see `heartbeat.lua`
-- Reply {field 'version', or ''; field 'text', or ''; worker, its report as JSON, ...}

local found = redis.call('HMGET', KEYS[1], 'version', 'text')
local reply = { found[1] or '', found[2] or '' }
local reports = redis.call('HGETALL', KEYS[2])
for i = 1, #reports, 2 do
  local ends, report = string.match(reports[i + 1], '^(%d+) (.*)$')
  if tonumber(ends) > now and tonumber(redis.call('ZSCORE', KEYS[3], reports[i]) or 0) > now then
    reply[#reply + 1], reply[#reply + 2] = reports[i], report
  end
end
return reply
