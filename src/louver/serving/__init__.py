"""An HTTP server for bundles. Works without torch for exported ones."""

from louver.errors import need_extra

need_extra("serve", "fastapi", "uvicorn", "prometheus_client")
