"""The user's own model: check it (doctor), audit its explanations (audit), make them robust (harden)."""

from robattr.auditing.audit import Audit as Audit
from robattr.auditing.audit import audit as audit
from robattr.auditing.certify import certify as certify
from robattr.auditing.cost import Plan as Plan
from robattr.auditing.doctor import Diagnosis as Diagnosis
from robattr.auditing.doctor import doctor as doctor
from robattr.auditing.embeddings import Embedded as Embedded
from robattr.auditing.embeddings import per_token as per_token
from robattr.auditing.harden import Hardened as Hardened
from robattr.auditing.harden import harden as harden
from robattr.auditing.interop import AttributionRobustness as AttributionRobustness
from robattr.auditing.interop import captum_map as captum_map
from robattr.auditing.interop import for_captum as for_captum
from robattr.auditing.interop import from_robustness as from_robustness
from robattr.auditing.interop import to_robustness as to_robustness
from robattr.auditing.record import Settings as Settings
from robattr.auditing.wrapped_model import Preprocessing as Preprocessing
from robattr.auditing.wrapped_model import WrappedModel as WrappedModel
from robattr.auditing.wrapped_model import wrap as wrap
from robattr.evaluation.checks import Check as Check
from robattr.reporting.verdict import Verdict as Verdict
