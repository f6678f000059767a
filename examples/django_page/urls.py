"""The addresses of the Django project; the page of queues is in `asgi.py`."""

from django.contrib import admin
from django.urls import path

urlpatterns = [path("admin/", admin.site.urls)]
