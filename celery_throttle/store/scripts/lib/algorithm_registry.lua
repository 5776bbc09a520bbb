-- algorithm_registry.lua: the constructor of each algorithm, by tag.

return {
  [GCRA] = make_meters, [TOKEN_BUCKET] = make_meters, [LEAKY_BUCKET] = make_meters,
  [LEAKY_QUEUE] = make_meters, [FIXED_WINDOW] = make_fixed_window, [SLIDING_LOG] = make_sliding_log,
  [SLIDING_WINDOW] = make_sliding_window, [SLOTS] = make_slots,
  [ADAPTIVE] = make_adaptive,
}
