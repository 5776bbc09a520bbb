-- remove_tasks.lua: removes tasks from their line; `has_others` is whether the line keeps any, nil if the caller does
-- not know. A line without tasks ends, but stays in its waiting list: the caller removes it there, or updates its
-- rank if it has tasks.
-- uses: end_line, waiting_list, fan_out_waiting, bulk_commands

local function remove_tasks(line, descriptor, limit_index, ids, has_others)
  local queue = descriptor.queue
  call_with('HDEL', queue[MESSAGES], ids)
  call_with('ZREM', line, ids)
  change_backlog(descriptor.limits[limit_index], -#ids)
  if descriptor.fan_out then
    change_fan_out_waiting(descriptor.fan_out, -#ids)
  end
  if has_others == nil then
    has_others = redis.call('EXISTS', line) == 1
  end
  if not has_others then
    end_line(line, descriptor)
  end
end
