//! Parts of operations: which bytes travel along which tree, from which ranks, to which.
//!
//! Every operation is a list of parts. The session, the forecast and the lower bound read the list
//! and know no operation by name. All gateways make the same list from the plan, the fabric and
//! what ranks posted.

mod block;
mod operation_parts;

pub use block::{Block, BlockRanks};
pub use operation_parts::{OperationPart, OperationPartSource, operation_parts_of_buffer};
