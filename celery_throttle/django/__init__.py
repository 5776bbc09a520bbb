"""The Django app ``celery_throttle.django``: the limits in the admin, and a system check.

Add it to ``INSTALLED_APPS``. Imports Django, and everything up to ``app``.

::

    apps.py      the configuration of the app
    models.py    Limit: no table, only its permissions
    admin.py     the web page as an admin page of Limit
    page.py      the web page as a Django view
    checks.py    the limits of all tasks as a system check; finds the Throttle of the project
"""
