-- settle_claims.lua: settles the claims and releases the slots that are listed in the arguments of `claim.lua`.
-- uses: claim_call, release_slots, bulk_commands

local function settle_claims()
  local settled, unstarted, acknowledged = {}, {}, {}
  local slots = 14 + tonumber(ARGV[9])
  local identities = slots + 3 * tonumber(ARGV[10])
  for i = 14, slots - 1 do
    local unstarted_token = string.match(ARGV[i], '^%-(.*)')
    if unstarted_token then
      unstarted[#unstarted + 1] = unstarted_token
    else
      settled[#settled + 1] = ARGV[i]
    end
  end
  call_with('HDEL', call.claims, settled)
  for _, unstarted_token in ipairs(unstarted) do
    local claim = redis.call('HGET', call.claims, unstarted_token)
    if claim then
      release_slots(select(3, cmsgpack.unpack_limit(claim, 2, 1)), call.worker, unstarted_token, call.wake_later)
      redis.call('HDEL', call.claims, unstarted_token)
    end
  end
  for i = slots, identities - 1, 3 do
    release_slot(ARGV[i], ARGV[i + 1], ARGV[i + 2], call.wake_later)
  end
  for i = identities, #ARGV do
    acknowledged[#acknowledged + 1] = ARGV[i]
  end
  call_with('ZREM', call.unacknowledged, acknowledged)
end
