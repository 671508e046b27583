//! Word to the witness that an epoch of this gateway's term has begun here.

use super::term::{Term, TermId};
use super::term_message::{TermMessage, TermStanding};
use crate::ids::BootId;
use units::{Span, TimeNs};

/// The notice to the witness: which it has noted last, and when the next one is due.
#[derive(Debug, Default)]
pub(super) struct WitnessNotice {
    /// The last term that the witness has noted, and its start.
    noted: Option<(TermId, BootId)>,
    /// When the notice is repeated.
    due: Option<TimeNs>,
}

impl WitnessNotice {
    /// Returns the message that the witness gets now, if any. `term` is the term of which an epoch has
    /// begun here, while the witness is reached; `witness` is its start, if that is known.
    pub fn next_message(
        &mut self,
        term: Option<&Term>,
        witness: Option<BootId>,
        now: TimeNs,
        repeated_after: Span,
    ) -> Option<TermMessage> {
        let is_noted = |term: &&Term| witness.is_some_and(|at| self.noted == Some((term.id, at)));
        let Some(term) = term.filter(|term| !is_noted(term)) else {
            self.due = None;
            return None;
        };
        if self.due.is_some_and(|due| due > now) {
            return None;
        }
        self.due = Some(now + repeated_after);
        Some(match witness {
            Some(to) => TermMessage::Begun { term: term.clone(), to },
            None => TermMessage::Ask,
        })
    }

    /// Notes the answer of the witness, which remembers once it has word of all gateways of a term.
    pub fn handle_standing(&mut self, standing: TermStanding) {
        if standing.voted == TermId::default() {
            // It does not know of the term, so it is told at once.
            self.due = None;
        } else if standing.remembers {
            self.noted = Some((standing.voted, standing.boot));
        }
    }

    /// Returns the time at which the notice is repeated; `None` while there is none.
    pub fn poll_timeout(&self) -> Option<TimeNs> {
        self.due
    }
}
