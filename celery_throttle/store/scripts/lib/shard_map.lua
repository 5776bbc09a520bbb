-- shard_map.lua: the hash of limits that are in another shard. A limit may be defined in one shard only, or it would be
-- granted twice. The hash has the fields
--   <limit>   epoch, a space, and the name of the shard; while the limit moves, the name of the shard that it leaves, a
--             space, and the name of the one that it goes to
-- In the home shard that is the map of all limits that are not there. It has besides
--   @epoch    number of the changes of the map
--   @<shard>  by how many shards it divides keys, 0 for one shard, and the server, both as the first settings said
-- In any other shard it has the limits that have left it, each with the epoch since which it is no longer there. A
-- process defines a limit there only after the home shard has answered that the limit is there, and sends the epoch of
-- that answer. If the answer is older than the move, nothing is defined.

-- The name of the shard to which a limit has gone, if it has done so after an answer; nil if it is here.
local function other_shard(shard_map, name, epoch)
  local entry = redis.call('HGET', shard_map, name)
  local since, shard = string.match(entry or '', '^(%d+) .-(%S+)$')
  return since and tonumber(since) > epoch and shard or nil
end
