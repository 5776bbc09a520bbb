from math import ceil

from celery_throttle import Throttled
from django.http import HttpResponse, JsonResponse

from shop.celery import throttle


def balance(request):
    try:
        throttle["stripe"].acquire(max_wait=1)
    except Throttled as error:
        return busy(error)
    return JsonResponse({"balance": 100})  # call Stripe here


async def async_balance(request):
    try:
        await throttle["stripe"].aacquire(max_wait=1)
    except Throttled as error:
        return busy(error)
    return JsonResponse({"balance": 100})  # call Stripe here


def busy(error):
    return HttpResponse(status=503, headers={"Retry-After": ceil(error.retry_after or 60)})
