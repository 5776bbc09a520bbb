-- batch_bytes.lua: bounds the bytes of tasks that one call reads, as the server does nothing else meanwhile.
-- A call goes on to another task until it has read BATCH_BYTES. So it reads one task at least, whatever its size.

local BATCH_BYTES = 1000000
