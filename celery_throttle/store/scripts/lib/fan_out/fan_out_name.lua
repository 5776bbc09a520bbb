-- fan_out_name.lua: the name for which the lines of paused fan-outs wait. It has no limits, only pauses: one for each
-- fan-out, by a key of the name. It is never defined, and nothing is counted for it.
-- Twin: `FAN_OUT_NAME` in `celery_throttle/store/keys.py`.

local FAN_OUT_NAME = '@fan-out'
