//! The signed fabrics of a gateway: judged ones, and the one in force.

use crate::events::{CheckedFabric, FabricJudge, FabricRefusal};
use hier_collectives::membership::{FabricVersion, TermAgreement};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The signed fabrics that a gateway could put in force, and the last one that it did.
pub(in crate::engine) struct EngineFabrics {
    /// The judge of signed fabrics.
    pub judge: Arc<dyn FabricJudge>,
    /// Those that the agreement may still ask for: the newest, and that of the term voted for.
    pub checked: BTreeMap<FabricVersion, CheckedFabric>,
    /// The fabric in force; `None` for that of the file.
    pub in_force: Option<CheckedFabric>,
    /// The version in force.
    pub version: FabricVersion,
    /// Whether a fabric of another gateway is being judged.
    pub is_judging: bool,
    /// A fabric of other gateways that cannot be put in force here, and why.
    pub refused: Option<(FabricVersion, FabricRefusal)>,
}

impl EngineFabrics {
    /// Makes the fabrics of a gateway that runs with its file of this version.
    pub fn of_file(version: FabricVersion, judge: Arc<dyn FabricJudge>) -> Self {
        let (checked, in_force, refused) = (BTreeMap::new(), None, None);
        Self { judge, checked, in_force, version, is_judging: false, refused }
    }

    /// Keeps a fabric that the agreement may ask for, and drops those that it will not.
    pub fn keep(&mut self, fabric: CheckedFabric, terms: &TermAgreement) {
        self.checked.insert(fabric.signed.version, fabric);
        self.checked.retain(|version, _| terms.may_need_fabric(*version));
    }
}

/// A judge that takes no fabric, for engines that are given none.
#[cfg(test)]
pub(in crate::engine) mod testing {
    use super::{CheckedFabric, FabricJudge, FabricRefusal};
    use hier_collectives::membership::SignedFabric;
    use hier_collectives::plan::Plan;
    use hier_collectives::topology::Fabric;
    use units::ByteCount;

    /// The judge.
    pub(in crate::engine) struct NoFabrics;

    impl FabricJudge for NoFabrics {
        fn judge_file(&self, _: &str, _: &str, _: usize) -> Result<CheckedFabric, FabricRefusal> {
            Err(FabricRefusal::NoVersion)
        }

        fn judge_signed(&self, _: &SignedFabric, _: usize) -> Result<CheckedFabric, FabricRefusal> {
            Err(FabricRefusal::NoVersion)
        }

        fn signed_at_start(&self) -> Option<SignedFabric> {
            None
        }

        fn keep(&self, _: &SignedFabric) -> Result<(), String> {
            Ok(())
        }

        fn partials_of_job(&self, _: &Fabric, _: &Plan, _: usize) -> ByteCount {
            ByteCount::default()
        }
    }
}
