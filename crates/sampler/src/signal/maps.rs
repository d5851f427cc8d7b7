//! `/proc/PID/maps`, line by line (proc(5)).

/// A line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line<'text> {
    pub begin: u64,
    pub end: u64,
    pub protection: u32,
    pub file_offset: u64,
    /// As the kernel has it; empty for anonymous memory.
    pub path: &'text [u8],
}

/// The lines that make sense.
pub(crate) fn lines(text: &[u8]) -> impl Iterator<Item = Line<'_>> {
    text.split(|byte| *byte == b'\n').filter_map(line)
}

/// `begin-end rwxp offset device inode      path`.
fn line(text: &[u8]) -> Option<Line<'_>> {
    let mut rest = text;
    let mut field = || {
        let end = rest
            .iter()
            .position(|byte| *byte == b' ')
            .unwrap_or(rest.len());
        let (field, after) = rest.split_at(end);
        rest = after.get(1..).unwrap_or_default();
        field
    };
    let range = field();
    let permissions = field();
    let file_offset = number(field())?;
    let (_device, _inode) = (field(), field());
    let dash = range.iter().position(|byte| *byte == b'-')?;
    let (begin, end) = (number(&range[..dash])?, number(&range[dash + 1..])?);
    let protection = b"rwx"
        .iter()
        .enumerate()
        .filter(|(at, letter)| permissions.get(*at) == Some(*letter))
        .fold(0, |all, (at, _)| all | 1 << at);
    let path = rest.trim_ascii_start();
    (begin < end).then_some(Line {
        begin,
        end,
        protection,
        file_offset,
        path,
    })
}

fn number(digits: &[u8]) -> Option<u64> {
    u64::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reads_what_the_kernel_writes() {
        let text = b"55d0-55e0 r-xp 00002000 fe:01 1234                       /usr/bin/a b\n\
                     7f00-7f10 rw-p 00000000 00:00 0 \n\
                     7ff0-7fff rw-p 00000000 00:00 0                          [stack]\n\
                     nonsense\n10-5 r--p 0 00:00 0\n7f10-7f";
        let read: Vec<_> = lines(text).collect();
        let expected = Line {
            begin: 0x55d0,
            end: 0x55e0,
            protection: 5,
            file_offset: 0x2000,
            path: b"/usr/bin/a b",
        };
        assert_eq!(read[0], expected);
        assert_eq!((read[1].path, read[1].protection), (&b""[..], 3));
        assert_eq!(read[2].path, b"[stack]");
        assert_eq!(read.len(), 3);
        let own = std::fs::read("/proc/self/maps").unwrap();
        let count = own.iter().filter(|byte| **byte == b'\n').count();
        assert_eq!(lines(&own).count(), count);
    }

    proptest! {
        #[test]
        fn any_text_ends(text in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(lines(&text).all(|line| line.begin < line.end));
        }
    }
}
