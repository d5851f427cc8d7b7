//! Architectures whose instructions are not decoded yet: what [`crate::architecture`] needs, saying
//! so. A decoder replaces this file by a module of its own.

use crate::calibrate::Side;
use crate::error::Error;
use crate::verdict::{Undecoded, Verdict};

pub(crate) const REGISTER_MASK: u64 = 0;

pub(crate) fn supported() -> Result<(), Error> {
    Err(Error::Architecture {
        architecture: std::env::consts::ARCH,
    })
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Code<'a> {
    pub address: u64,
    pub bytes: &'a [u8],
    pub bitness: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flow;

impl Flow {
    pub fn sweep(_: Code<'_>, _: usize) -> Self {
        Self
    }

    pub fn converge(_: Code<'_>, _: usize) -> Option<usize> {
        None
    }

    pub fn index(&self, _: usize) -> Option<usize> {
        None
    }
}

pub(crate) struct Judge;

impl Judge {
    pub fn new() -> Self {
        Self
    }

    pub fn judge(&mut self, code: Code<'_>, _: &Flow, _: usize, _: Side) -> Verdict {
        let _ = (code.address, code.bytes, code.bitness);
        Verdict::Undecoded(Undecoded::NoCode)
    }
}

pub(crate) mod chase {
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Places {
        pub begin: u64,
        pub load: u64,
        pub after: u64,
    }

    pub(crate) fn run(chain: *const u8, _: u64) -> (*const u8, Places) {
        (
            chain,
            Places {
                begin: 0,
                load: 0,
                after: 0,
            },
        )
    }
}
