"""Certificates: the record of a proof that two networks are equal, and the checker that needs nobody's word.

``records.py`` and ``hinting.py`` gather what :mod:`relutrim.certificate.check` needs, ``write.py`` puts it
into a file. Nothing is imported here: the checker runs where numpy and onnx are all there is.
"""
