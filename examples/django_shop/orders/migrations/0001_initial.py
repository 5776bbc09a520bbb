from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    dependencies = []
    operations = [
        migrations.CreateModel(
            name="Order",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        primary_key=True, serialize=False, auto_created=True, verbose_name="ID"
                    ),
                ),
                ("tenant_id", models.SlugField()),
                ("charged_at", models.DateTimeField(null=True)),
                ("receipt_sent_at", models.DateTimeField(null=True)),
            ],
        ),
    ]
