//! Output folders of a job's ranks: placeholders in `-o`, and the default.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use nearpage_recording::{Launched, fit_for_a_file};

use super::{launched, own_host};

/// Maximum length of a variable's value in a path, in bytes.
const VALUE_BYTES_MAX: usize = 255;

/// Mistakes in the placeholders of `-o`.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum OutputError {
    #[error(
        "-o {pattern}: unknown placeholder {placeholder}; known are %h (host), %p (process), %j (job), %r (rank), %l \
         (local rank), %s (size), %n (node index), %q{{VARIABLE}}, and %% for a percent sign"
    )]
    Unknown {
        pattern: String,
        placeholder: String,
    },
    #[error(
        "-o {pattern}: no launcher (srun, mpirun) says what {placeholder} is here; %p and %h are always known"
    )]
    NotLaunched {
        pattern: String,
        placeholder: String,
    },
    #[error("-o {pattern}: {launcher} does not say what {placeholder} is; use another placeholder")]
    NotSaid {
        pattern: String,
        placeholder: String,
        launcher: String,
    },
    #[error("-o {pattern}: the environment variable {variable} is not set")]
    Unset { pattern: String, variable: String },
    #[error(
        "-o {pattern}: the value of {variable} can't be part of a folder's name: it is empty, too long, `.` or `..`, or \
         has a slash or a control character"
    )]
    UnfitValue { pattern: String, variable: String },
}

/// Replaces the placeholders in the path of `-o` by this process's values.
///
/// # Errors
/// A placeholder is unknown or has no value here.
pub fn expand_output(pattern: &Path) -> Result<PathBuf, OutputError> {
    if !pattern.as_os_str().as_bytes().contains(&b'%') {
        return Ok(pattern.to_owned());
    }
    let expansion = Expansion {
        pattern,
        launched: launched(),
        own_host: own_host(),
        pid: std::process::id(),
    };
    expansion.expand(|name| std::env::var_os(name))
}

/// Default folder of this process's job, and name of the rank's folder below it:
/// `PROGRAM.JOB.nearpage/rank-00042@HOST`.
pub(crate) fn job_folder(launched: &Launched, program: &OsStr) -> (PathBuf, String) {
    let mut folder = program.to_owned();
    if let Some(job) = launched.job_name() {
        folder.push(format!(".{job}"));
    }
    folder.push(".nearpage");
    let rank = format!("rank-{:05}@{}", launched.rank, launched.host);
    (folder.into(), rank)
}

struct Expansion<'a> {
    pattern: &'a Path,
    launched: Option<Launched>,
    own_host: String,
    pid: u32,
}

impl Expansion<'_> {
    fn expand(
        &self,
        variable: impl Fn(&OsStr) -> Option<OsString>,
    ) -> Result<PathBuf, OutputError> {
        let pattern = self.pattern.as_os_str().as_bytes();
        let mut path = Vec::with_capacity(pattern.len());
        let mut rest = pattern;
        while let Some(position) = rest.iter().position(|byte| *byte == b'%') {
            path.extend(&rest[..position]);
            rest = &rest[position..];
            let length = match rest.get(1) {
                Some(b'q') => {
                    let end = rest.iter().position(|byte| *byte == b'}');
                    let (Some(end), Some(b'{')) = (end, rest.get(2)) else {
                        return Err(self.unknown(rest));
                    };
                    path.extend(self.value(&rest[3..end], &variable)?);
                    end + 1
                }
                Some(letter) => {
                    path.extend(self.placeholder(*letter, rest)?.into_bytes());
                    2
                }
                None => return Err(self.unknown(rest)),
            };
            rest = &rest[length..];
        }
        path.extend(rest);
        Ok(OsString::from_vec(path).into())
    }

    fn placeholder(&self, letter: u8, rest: &[u8]) -> Result<String, OutputError> {
        let launched = self.launched.as_ref();
        let text = |number: u32| Some(number.to_string());
        let said = match letter {
            b'%' => return Ok("%".to_owned()),
            b'p' => return Ok(self.pid.to_string()),
            b'h' => {
                let host = launched.map(|launched| launched.host.clone());
                let host = host.or_else(|| fit_for_a_file(&self.own_host));
                return Ok(host.unwrap_or_else(|| "host".to_owned()));
            }
            b'j' => launched.map(Launched::job_name),
            b'r' => launched.map(|launched| text(launched.rank)),
            b'l' => launched.map(|launched| launched.local_rank.and_then(text)),
            b's' => launched.map(|launched| launched.size.and_then(text)),
            b'n' => launched.map(|launched| launched.node_index.and_then(text)),
            _ => return Err(self.unknown(rest)),
        };
        let placeholder = || format!("%{}", char::from(letter));
        match said {
            None => Err(OutputError::NotLaunched {
                pattern: self.name(),
                placeholder: placeholder(),
            }),
            Some(None) => Err(OutputError::NotSaid {
                pattern: self.name(),
                placeholder: placeholder(),
                launcher: launched.map_or_else(String::new, |known| known.launcher.to_string()),
            }),
            Some(Some(value)) => Ok(value),
        }
    }

    /// Value of a variable. The value becomes part of a name, so it must not lead to another folder.
    fn value(
        &self,
        name: &[u8],
        variable: impl Fn(&OsStr) -> Option<OsString>,
    ) -> Result<Vec<u8>, OutputError> {
        let shown = shown(name);
        let is_name = !name.is_empty() && !name.iter().any(|byte| b"=\0".contains(byte));
        let found = is_name.then(|| variable(OsStr::from_bytes(name))).flatten();
        let Some(value) = found.map(OsString::into_vec) else {
            return Err(OutputError::Unset {
                pattern: self.name(),
                variable: shown,
            });
        };
        let is_fit = |byte: &u8| *byte != b'/' && !byte.is_ascii_control();
        let is_step = matches!(value.as_slice(), b"" | b"." | b"..");
        if is_step || value.len() > VALUE_BYTES_MAX || !value.iter().all(is_fit) {
            return Err(OutputError::UnfitValue {
                pattern: self.name(),
                variable: shown,
            });
        }
        Ok(value)
    }

    fn name(&self) -> String {
        self.pattern.display().to_string()
    }

    /// Error for an unknown placeholder at the start of `rest`.
    fn unknown(&self, rest: &[u8]) -> OutputError {
        let length = match rest.get(1) {
            Some(b'q') => rest.len(),
            // A character of several bytes is kept whole.
            _ => {
                1 + rest[1..].iter().take(1).count()
                    + rest[1..]
                        .iter()
                        .skip(1)
                        .take_while(|byte| **byte & 0xc0 == 0x80)
                        .count()
            }
        };
        OutputError::Unknown {
            pattern: self.name(),
            placeholder: shown(&rest[..length.min(rest.len())]),
        }
    }
}

fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use nearpage_recording::Launcher;

    use super::*;

    fn launched() -> Launched {
        Launched {
            launcher: Launcher::Slurm,
            rank: 42,
            size: Some(64),
            local_rank: Some(2),
            node_index: None,
            host: "n7".to_owned(),
            job: Some("1234".to_owned()),
            step: Some("0".to_owned()),
        }
    }

    fn expand(pattern: &str, launched: Option<Launched>) -> Result<String, OutputError> {
        let expansion = Expansion {
            pattern: Path::new(pattern),
            launched,
            own_host: "vm".to_owned(),
            pid: 99,
        };
        let variable = |name: &OsStr| match name.to_str()? {
            "RUN" => Some("a b".into()),
            "PATHLIKE" => Some("../x".into()),
            "UP" => Some("..".into()),
            "EMPTY" => Some("".into()),
            "LONG" => Some("x".repeat(300).into()),
            _ => None,
        };
        let path = expansion.expand(variable)?;
        Ok(path.into_os_string().into_string().unwrap())
    }

    #[test]
    fn placeholders_are_what_the_launcher_says() {
        let expanded = |pattern| expand(pattern, Some(launched())).unwrap();
        assert_eq!(expanded("run"), "run");
        assert_eq!(expanded("%j/%r@%h.%l-%s.%p"), "1234/42@n7.2-64.99");
        assert_eq!(expanded("%q{RUN}/100%%%q{RUN}"), "a b/100%a b");
        assert_eq!(expand("%h-%p", None).unwrap(), "vm-99");
    }

    #[test]
    fn wrong_placeholders_are_named_in_a_line() {
        let error = |pattern: &str| {
            let refused = expand(pattern, Some(launched()));
            refused.unwrap_err().to_string()
        };
        for (pattern, placeholder) in [
            ("a%x", "%x "),
            ("a%", "%;"),
            ("%q", "%q;"),
            ("%q{A", "%q{A;"),
            ("%ü", "%ü;"),
        ] {
            let said = error(pattern);
            let expected = format!(
                "unknown placeholder {}",
                placeholder.trim_end_matches([' ', ';'])
            );
            assert!(said.contains(&expected) && !said.contains('\n'), "{said}");
        }
        assert!(error("%n").contains("Slurm does not say what %n is"));
        assert!(error("%q{NONE}").contains("variable NONE is not set"));
        assert!(error("%q{}").contains("is not set"));
        for name in ["PATHLIKE", "UP", "EMPTY", "LONG"] {
            let said = error(&format!("%q{{{name}}}"));
            assert!(said.contains(&format!("value of {name} can't")), "{said}");
        }
        let alone = expand("%r", None).unwrap_err().to_string();
        assert!(alone.contains("no launcher"), "{alone}");
    }

    #[test]
    fn the_default_is_a_folder_of_the_job() {
        let (folder, rank) = job_folder(&launched(), OsStr::new("cg"));
        assert_eq!(
            folder.join(rank),
            Path::new("cg.1234.nearpage/rank-00042@n7")
        );
    }
}
