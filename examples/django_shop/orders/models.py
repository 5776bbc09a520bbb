from django.db import models


class Order(models.Model):
    tenant_id = models.SlugField()
    charged_at = models.DateTimeField(null=True)
    receipt_sent_at = models.DateTimeField(null=True)
