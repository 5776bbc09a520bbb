from celery import shared_task
from django.utils import timezone

from orders.models import Order


@shared_task(throttle="stripe")
def charge(order_id):
    # Call Stripe here.
    Order.objects.filter(pk=order_id).update(charged_at=timezone.now())


@shared_task(throttle="mail:{tenant_id}")
def send_receipt(tenant_id, order_id):
    # Send the mail here.
    Order.objects.filter(pk=order_id).update(receipt_sent_at=timezone.now())
