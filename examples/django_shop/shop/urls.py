from django.contrib import admin
from django.urls import path

from orders import balance, views

urlpatterns = [
    path("admin/", admin.site.urls),
    path("orders/<slug:tenant_id>/", views.place_order),
    path("balance/", balance.balance),
    path("balance/async/", balance.async_balance),
]
