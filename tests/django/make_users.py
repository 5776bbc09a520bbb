"""Makes the database of the project, with a user for each set of permissions."""

from __future__ import annotations

import django
from django.core.management import call_command

#: The password of all users.
PASSWORD = "password"

if __name__ == "__main__":
    django.setup()
    call_command("migrate", verbosity=0)
    from django.contrib.auth.models import Permission, User

    User.objects.create_superuser("root", password=PASSWORD)
    for name, is_staff, permission in (
        ("clerk", True, None),
        ("viewer", True, "view_limit"),
        ("changer", True, "change_limit"),
        ("customer", False, "view_limit"),
    ):
        user = User.objects.create_user(name, password=PASSWORD, is_staff=is_staff)
        if permission:
            user.user_permissions.add(
                Permission.objects.get(
                    content_type__app_label="celery_throttle", codename=permission
                )
            )
