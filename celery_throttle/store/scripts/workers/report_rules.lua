-- report_rules.lua: records the rules file of a worker, and replies which rules are in force.
-- KEYS  1   hash: worker -> until when (us) its report counts, a space, and the report
--       2   hash: the rules file, see `apply_rules.lua`
--       3   zset: live workers, see `heartbeat.lua`
-- ARGV  2   the worker
--       3   for how long (us) the report counts; 0 if the worker ends
--       4   JSON: digest, path and time (us) of its file, and why that cannot be used
--       5   digest of the rules that the worker knows; '' for none
-- Reply {}                if no rules were put in force
--       {field 'version'}   if the worker knows the rules in force
--       {field 'version', field 'text'}    else

work_without_memory()
local files, lasts = KEYS[1], tonumber(ARGV[3])
if lasts == 0 then
  redis.call('HDEL', files, ARGV[2])
else
  redis.call('HSET', files, ARGV[2], format_integer(now + lasts) .. ' ' .. ARGV[4])
  redis.call('PEXPIRE', files, expiry_ms(lasts))
end
if redis.call('HLEN', files) > redis.call('ZCARD', KEYS[3]) then
  local all = redis.call('HGETALL', files)
  for i = 1, #all, 2 do
    if tonumber(string.match(all[i + 1], '^%d+')) <= now then
      redis.call('HDEL', files, all[i])
    end
  end
end
local found = redis.call('HMGET', KEYS[2], 'version', 'text')
if not found[1] then
  return {}
elseif ARGV[5] ~= '' and string.find(found[1], ARGV[5], 1, true) then
  return { found[1] }
end
return found
