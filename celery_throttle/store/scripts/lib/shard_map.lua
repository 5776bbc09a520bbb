-- shard_map.lua: the hash of limits that are in another shard. A limit may be defined in one shard only, or it would be
-- granted twice. The hash has the fields
--   <limit>   epoch, a space, and the name of the shard; while the limit moves, the name of the shard that it leaves, a
--             space, and the name of the one that it goes to
-- In the home shard that is the map of all limits that are not there, or have come back ('@'). It has besides
--   @epoch    number of the changes of the map
--   @<shard>  by how many shards it divides keys, 0 for one shard, and the server, both as the first settings said
-- In any other shard it has the limits that have left it, each with the epoch since which it is no longer there; and
-- those that are there, with the epoch of the last answer and '@' in place of a name. If the home shard loses its data,
-- the map is made anew from these: a later epoch takes precedence. A process defines a limit there only after the home
-- shard has answered that the limit is there, and sends the epoch of that answer. If the answer is older than the move,
-- nothing is defined.
-- For moves it has in any shard
--   @left <limit>      in the shard that the limit has left, until the move ends: what was there, packed by cmsgpack; see
--                      `leave.lua`
--   @used-up <limit>   in the shard that it has come to, while it is there: when (us) its units count as in use, a space, and the epoch of
--                      the move

-- When (us) the units of a limit that has moved here count as in use, 0 if it has not, and the epoch of the move.
local function used_up_since(shard_map, name)
  local used_up, epoch = string.match(redis.call('HGET', shard_map, '@used-up ' .. name) or '0 0', '^(%d+) (%d+)$')
  return tonumber(used_up), tonumber(epoch)
end

-- Notes that a limit is in this shard, which is not the home shard.
local function note_here(shard_map, name, epoch)
  if epoch > 0 then
    redis.call('HSET', shard_map, name, format_integer(epoch) .. ' @')
  end
end

-- The name of the shard to which a limit has gone, if it has done so after an answer; nil if it is here. '@' if a later
-- answer than this one has said that it is here.
local function other_shard(shard_map, name, epoch)
  local entry = redis.call('HGET', shard_map, name)
  local since, shard = string.match(entry or '', '^(%d+) .-(%S+)$')
  local is_here = shard == '@' and epoch == 0 -- in the home shard
  return since and tonumber(since) > epoch and not is_here and shard or nil
end
