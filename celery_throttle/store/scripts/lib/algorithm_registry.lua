-- algorithm_registry.lua: the functions that return the algorithms, by tag.

return {
  [GCRA] = meters_extra, [TOKEN_BUCKET] = meters_extra, [LEAKY_BUCKET] = meters_extra, [LEAKY_QUEUE] = meters_extra,
  [FIXED_WINDOW] = fixed_window, [SLIDING_LOG] = sliding_log, [SLIDING_WINDOW] = sliding_window, [SLOTS] = slots,
  [ADAPTIVE] = adaptive,
}
