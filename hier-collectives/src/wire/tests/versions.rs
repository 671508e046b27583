use crate::codec::DecodeError;
use crate::ids::BootId;
use crate::wire::{
    Hello, HelloError, NoCommonWireVersion, WIRE_VERSION, WireVersion, WireVersions,
};
use proptest::prelude::*;

fn versions(oldest: u16, newest: u16) -> WireVersions {
    WireVersions::new(WireVersion(oldest), WireVersion(newest)).expect("in order")
}

/// A hello of a gateway that speaks these versions, on the wire.
fn hello(versions: WireVersions) -> Vec<u8> {
    let (fabric, gateway, boot) = ([1; 32], "east-0".to_owned(), BootId(5));
    Hello { versions, fabric, gateway, boot, lane: 1 }.encode()
}

fn chosen(theirs: &[u8], own: WireVersions) -> Result<u16, HelloError> {
    Hello::decode(theirs, own).map(|(_, version)| version.0)
}

#[test]
fn the_highest_common_version_is_chosen() {
    for (own, theirs, highest) in [
        (versions(12, 12), versions(12, 12), 12),
        (versions(12, 13), versions(12, 12), 12),
        (versions(12, 13), versions(13, 14), 13),
        (versions(12, 15), versions(13, 14), 14),
    ] {
        assert_eq!(chosen(&hello(theirs), own), Ok(highest), "{own} and {theirs}");
        assert_eq!(chosen(&hello(own), theirs), Ok(highest), "{theirs} and {own}");
    }
}

#[test]
fn versions_apart_name_the_older_gateway() {
    let (older, newer) = (versions(12, 13), versions(14, 15));
    for (own, theirs) in [(older, newer), (newer, older)] {
        let refused = NoCommonWireVersion { own, theirs };
        assert_eq!(chosen(&hello(theirs), own), Err(HelloError::Versions(refused)));
        assert_eq!(refused.is_peer_older(), theirs == older);
    }
    assert_eq!((older.to_string(), versions(7, 7).to_string()), ("12 to 13".into(), "7".into()));
}

#[test]
fn a_version_without_a_range_is_one() {
    // No field behind the version is that of this layout.
    let bytes = [&[0, 11][..], &[0xff; 60]].concat();
    let Err(HelloError::Versions(refused)) = chosen(&bytes, WireVersions::OWN) else {
        panic!("version 11 is not spoken");
    };
    assert_eq!(refused.theirs, versions(11, 11));
    let own = versions(WIRE_VERSION.0, WIRE_VERSION.0);
    let inverted = [&[0, 13, 0, 14][..], &hello(own)[4..]].concat();
    let fault = HelloError::Malformed(DecodeError::Invalid("range of versions"));
    assert_eq!(chosen(&inverted, own), Err(fault));
}

#[test]
fn fields_of_later_versions_are_not_read() {
    let later = [&hello(versions(12, 13))[..], b"more"].concat();
    assert_eq!(chosen(&later, versions(12, 12)), Ok(12));
    assert!(matches!(chosen(&later, versions(12, 13)), Err(HelloError::Malformed(_))));
    let short = hello(versions(12, 13));
    let cut = &short[..short.len() - 1];
    assert!(matches!(chosen(cut, versions(12, 12)), Err(HelloError::Malformed(_))));
}

proptest! {
    #[test]
    fn both_ends_choose_alike(a in 0..20_u16, b in 0..20_u16, c in 0..20_u16, d in 0..20_u16) {
        let (one, other) = (versions(a.min(b), a.max(b)), versions(c.min(d), c.max(d)));
        let common: Vec<u16> = (a.min(b)..=a.max(b)).filter(|v| (c.min(d)..=c.max(d)).contains(v)).collect();
        let here = one.highest_common(other).ok().map(|version| version.0);
        let there = other.highest_common(one).ok().map(|version| version.0);
        prop_assert_eq!(here, common.last().copied());
        prop_assert_eq!(there, here);
    }
}
