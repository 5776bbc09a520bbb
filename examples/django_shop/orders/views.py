from django.db import transaction
from django.http import JsonResponse

from orders.models import Order
from orders.tasks import charge, send_receipt


def place_order(request, tenant_id):
    with transaction.atomic():
        order = Order.objects.create(tenant_id=tenant_id)
        charge.delay_on_commit(order.pk)
        send_receipt.delay_on_commit(tenant_id, order.pk)
    return JsonResponse({"order": order.pk}, status=202)
