"""Validates documents: Kubernetes' own kinds against its schemas, custom ones against typed models of their CRDs."""

from functools import cache
from typing import Any, Final

import kubernetes_validate
from cloudcoil.models.keda.v1alpha1 import ScaledObject, TriggerAuthentication
from cloudcoil.models.prometheus_operator.v1 import PodMonitor, PrometheusRule, ServiceMonitor
from pydantic import BaseModel

from tests.chart.http_route import HttpRoute
from tests.chart.leader_worker_set import LeaderWorkerSet

OLDEST: Final = "1.29"
NEWEST: Final = kubernetes_validate.latest_version()
_MODELS: Final[dict[str, type[BaseModel]]] = {
    "keda.sh/v1alpha1/ScaledObject": ScaledObject,
    "keda.sh/v1alpha1/TriggerAuthentication": TriggerAuthentication,
    "monitoring.coreos.com/v1/PodMonitor": PodMonitor,
    "monitoring.coreos.com/v1/ServiceMonitor": ServiceMonitor,
    "monitoring.coreos.com/v1/PrometheusRule": PrometheusRule,
    "leaderworkerset.x-k8s.io/v1/LeaderWorkerSet": LeaderWorkerSet,
    "gateway.networking.k8s.io/v1/HTTPRoute": HttpRoute,
}
# Otherwise the library reads its files again for each document.
kubernetes_validate.utils.schema_contents = cache(kubernetes_validate.utils.schema_contents)


def check(document: dict[str, Any]) -> None:
    """Raises if the kind is not known, or the document does not fit it, or it has a field that the kind does not."""
    model = _MODELS.get(f"{document['apiVersion']}/{document['kind']}")
    if model is None:
        for version in (OLDEST, NEWEST):
            kubernetes_validate.validate(document, str(version), strict=True)
        return
    # The models pass over a field that they don't know: only the dump shows that it was not taken.
    taken = model.model_validate(document).model_dump(mode="json", by_alias=True, exclude_unset=True)
    assert taken == document
    if model is LeaderWorkerSet:
        group = document["spec"]["leaderWorkerTemplate"]
        for template in (group["leaderTemplate"], group["workerTemplate"]):
            metadata = {"name": document["metadata"]["name"]}
            check({"apiVersion": "v1", "kind": "PodTemplate", "metadata": metadata, "template": template})
