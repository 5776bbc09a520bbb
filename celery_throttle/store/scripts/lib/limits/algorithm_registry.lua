-- algorithm_registry.lua: the constructor of each algorithm, by tag.
-- uses: meters_extra, fixed_window, sliding_window, sliding_log, slots, adaptive

return {
  [GCRA] = make_meters, [TOKEN_BUCKET] = make_meters, [LEAKY_BUCKET] = make_meters,
  [LEAKY_QUEUE] = make_meters, [FIXED_WINDOW] = make_fixed_window, [SLIDING_LOG] = make_sliding_log,
  [SLIDING_WINDOW] = make_sliding_window, [SLOTS] = make_slots,
  [ADAPTIVE] = make_adaptive,
}
