"""Operations on limits as plans without I/O: which scripts to call, and what their replies mean.

May import :mod:`celery_throttle.limits` and :mod:`celery_throttle.store`.
"""
