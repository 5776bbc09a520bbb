-- claim_call.lua: the arguments of `claim.lua`, and what the call has done so far.

local claim_numbers = { struct.unpack('<dddddddddd', ARGV[4]) }

local call = {
  worker = ARGV[2], channel = ARGV[3], lease_ends = now + claim_numbers[1],
  definitions = KEYS[1], unacknowledged = KEYS[2], workers = KEYS[3], claims = KEYS[4],
  wanted = claim_numbers[2], max_sleep = claim_numbers[5], settled = claim_numbers[6], releases = claim_numbers[7],
  free_processes = claim_numbers[9], free_horizon = claim_numbers[3], busy_horizon = claim_numbers[10],
  token = claim_numbers[4],    -- of the next task
  taken = {},                  -- rows of the reply
  last_start = false,          -- the latest start (us) that is booked for one of them
  is_late = false,             -- whether a list was served so late that workers have to poll sooner
  bytes = 0,                   -- of the tasks read so far
  visits = claim_numbers[2] + 16, -- lines that it may still look at; 0 ends it, and the worker polls again at once
  lacks_process = false,       -- whether a process has to be free for the next task, and none is
  is_registered = claim_numbers[8] == 1, -- whether the worker has registered its limits since its last call
  has_undefined = false,       -- whether a line needs a limit that the worker has to register first
  wake_later = {},             -- {due, polls} of queues that wait for a slot released by this call
}

-- How far ahead (us) a start may be booked for the next task.
local function booking_horizon()
  return #call.taken < call.free_processes and call.free_horizon or call.busy_horizon
end
