-- algorithm_registry.lua: how to make the algorithms that most decisions do without, by their tags.
-- uses: meters_extra, windows, sliding_log, slots, adaptive
--
-- Library, of which nothing is made before it is called, see `definition.lua`.

return {
  [GCRA] = make_meters, [TOKEN_BUCKET] = make_meters, [LEAKY_BUCKET] = make_meters,
  [LEAKY_QUEUE] = make_meters, [FIXED_WINDOW] = make_fixed_window, [SLIDING_LOG] = make_sliding_log,
  [SLIDING_WINDOW] = make_sliding_window, [SLOTS] = make_slots,
  [ADAPTIVE] = make_adaptive,
}
