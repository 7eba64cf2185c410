"""Bring your own model: check it, audit its explanations, make them hold."""

from robattr.auditing.audit import Audit as Audit
from robattr.auditing.audit import audit as audit
from robattr.auditing.doctor import Diagnosis as Diagnosis
from robattr.auditing.doctor import doctor as doctor
from robattr.auditing.doors import AttributionRobustness as AttributionRobustness
from robattr.auditing.doors import from_robustness as from_robustness
from robattr.auditing.doors import to_robustness as to_robustness
from robattr.auditing.embeddings import Embedded as Embedded
from robattr.auditing.harden import Hardened as Hardened
from robattr.auditing.harden import harden as harden
from robattr.auditing.maps import captum_map as captum_map
from robattr.auditing.maps import for_captum as for_captum
from robattr.auditing.maps import per_token as per_token
from robattr.auditing.patient import Check as Check
from robattr.auditing.patient import Plan as Plan
from robattr.auditing.preprocessing import Preprocessing as Preprocessing
from robattr.auditing.settings import Settings as Settings
from robattr.auditing.subject import Subject as Subject
from robattr.auditing.subject import subject as subject
from robattr.report.verdict import Verdict as Verdict
