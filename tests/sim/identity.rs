//! Who may meet: certificates and fabrics that are refused.
