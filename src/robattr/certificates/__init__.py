"""Certificates: bounds that no attack can break.

Of smoothed explanations, for any network, within an L2 radius; by intervals, for networks trained with them, in L∞.
"""

from robattr.certificates.attack import SmoothedAttack as SmoothedAttack
from robattr.certificates.certificate import Bounds as Bounds
from robattr.certificates.certificate import Certificate as Certificate
from robattr.certificates.certificate import bounds_from as bounds_from
from robattr.certificates.challenge import Challenge as Challenge
from robattr.certificates.examples import Examples as Examples
from robattr.certificates.intervals import IntervalCertificate as IntervalCertificate
from robattr.certificates.intervals import interval_bounds as interval_bounds
from robattr.certificates.intervals import measure_intervals as measure_intervals
from robattr.certificates.run import Certificates as Certificates
from robattr.certificates.run import attack_certificates as attack_certificates
from robattr.certificates.run import certify as certify
from robattr.certificates.smoothing import Smoothing as Smoothing
from robattr.certificates.smoothing import Tally as Tally
from robattr.certificates.smoothing import tally as tally
