"""Certificates of smoothed explanations: bounds that no attack within an L2 radius can break."""

from robattr.certificates.attack import SmoothedAttack as SmoothedAttack
from robattr.certificates.certificate import Bounds as Bounds
from robattr.certificates.certificate import Certificate as Certificate
from robattr.certificates.certificate import bounds_from as bounds_from
from robattr.certificates.challenge import Challenge as Challenge
from robattr.certificates.examples import Examples as Examples
from robattr.certificates.run import Certificates as Certificates
from robattr.certificates.run import attack_certificates as attack_certificates
from robattr.certificates.run import certify as certify
from robattr.certificates.smoothing import Smoothing as Smoothing
from robattr.certificates.smoothing import Tally as Tally
from robattr.certificates.smoothing import tally as tally
