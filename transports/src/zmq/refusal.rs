//! Why a greeting is not answered with a welcome, in a byte and in words.

use crate::terms::Difference;

/// Why a greeting is not answered with a welcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The differences, as the refusing end sees them; at least one.
    Differs(Vec<Difference>),
    /// The rank is connected already. It may try again later.
    Taken,
    /// The session to resume is not known: the refusing end was restarted, or has given this end up.
    UnknownSession,
    /// The rank took part and left. In this run no rank may return.
    TooLate,
    /// The rank broke the protocol, or sent messages that the caller refuses.
    ShutOut,
}

impl Refusal {
    /// The byte that travels. Callers see a refusal in words only, so it has no number among their errors.
    pub(super) fn byte(&self) -> u8 {
        match self {
            Self::Differs(_) => 0,
            Self::Taken => 1,
            Self::UnknownSession => 2,
            Self::TooLate => 3,
            Self::ShutOut => 4,
        }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Differs(differences) => write!(f, "{}", Difference::line(differences)),
            Self::Taken => {
                write!(f, "that rank is connected already: stop one of the two, or give it a rank of its own")
            }
            Self::UnknownSession => write!(
                f,
                "the session that was to be resumed is over: the end that listens was started again, or had given \
                 the other one up; a worker begins a new session by itself"
            ),
            Self::TooLate => {
                write!(f, "that rank was here before and is gone; this run takes nobody in again")
            }
            Self::ShutOut => write!(
                f,
                "that rank was shut out of this run; a list of peers with another key for it lets it in again"
            ),
        }
    }
}
