//! On-disk forms.
