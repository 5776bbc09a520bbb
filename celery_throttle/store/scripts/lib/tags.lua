-- tags.lua: the byte that stands for each algorithm in definitions and states. The first four are meters. Twin: TAGS
-- in `celery_throttle/store/definitions.py`.

local GCRA, TOKEN_BUCKET, LEAKY_BUCKET, LEAKY_QUEUE = 1, 2, 3, 4
local FIXED_WINDOW, SLIDING_LOG, SLIDING_WINDOW, SLOTS, ADAPTIVE = 5, 6, 7, 8, 9
