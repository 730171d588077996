//! Settings and the complete configuration that follows from them, made from one list of fields.

/// The type of a field in the complete configuration.
macro_rules! kept {
    (always $given:ty) => { $given };
    (maybe $given:ty) => { Option<$given> };
    (parsed $given:ty => $kept:ty) => { $kept };
}

/// The value of a field in the complete configuration.
macro_rules! filled {
    (always $name:ident $own:ident $given:ident $parsed:ident $default:expr) => {
        super::fields::or($own.$name, $given, $default)
    };
    (maybe $name:ident $own:ident $given:ident $parsed:ident $default:expr) => {
        super::fields::or_else($own.$name, $given, $default)
    };
    (maybe $name:ident $own:ident $given:ident $parsed:ident) => {
        $own.$name
    };
    (parsed $name:ident $own:ident $given:ident $parsed:ident) => {
        $parsed.$name
    };
}

/// Makes `Settings`, in which every field is an `Option`, and `RunConfig`. The word before a field says what
/// becomes of it there:
///
/// - `always`: it has a value, by default that of the function.
/// - `maybe`: it stays open if it was not given, unless the function has a default for it.
/// - `parsed`: it has the type behind the arrow, and is made by [`RunConfig::resolve`](super::RunConfig).
///
/// `arg` is for the command line, `serde` for both types, and `kept` for serde in `RunConfig`.
macro_rules! fields {
    ($(
        $(#[doc $($doc:tt)*])*
        #[arg($($arg:tt)*)]
        $(#[serde($($serde:tt)*)])?
        $(#[kept($($own:tt)*)])?
        $state:ident $name:ident: $given:ty $(=> $kept:ty)? $(= $default:expr)?;
    )*) => {
        /// What the user said, and nothing more. Keys of a file have underscores, options of the command line
        /// dashes; an option with underscores is read too.
        #[derive(Clone, Debug, Default, PartialEq, clap::Args, serde::Serialize, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct Settings {
            $(
                $(#[doc $($doc)*])*
                #[arg($($arg)*)]
                $(#[serde($($serde)*)])?
                pub $name: Option<$given>,
            )*
        }

        /// A complete and checked configuration. Serialised, it has the keys of [`Settings`].
        #[derive(Clone, Debug, PartialEq, serde::Serialize)]
        pub struct RunConfig {
            $(
                $(#[doc $($doc)*])*
                $(#[serde($($serde)*)])?
                $(#[serde($($own)*)])?
                pub $name: super::fields::kept!($state $given $(=> $kept)?),
            )*
        }

        impl Settings {
            /// These settings, with those of `below` for keys that are not set.
            fn or(self, below: Self) -> Self {
                Self { $($name: self.$name.or(below.$name)),* }
            }

            /// The configuration with defaults where these settings are silent.
            pub(super) fn complete(&self, parsed: super::parsed::Parsed) -> RunConfig {
                let (own, given) = (self.clone(), self);
                RunConfig { $($name: super::fields::filled!($state $name own given parsed $($default)?)),* }
            }
        }
    };
}

/// A value, or its default beside the settings.
pub(super) fn or<S, T>(value: Option<T>, settings: &S, default: fn(&S) -> T) -> T {
    value.unwrap_or_else(|| default(settings))
}

/// A value, or its default if these settings have one for it.
pub(super) fn or_else<S, T>(value: Option<T>, settings: &S, default: fn(&S) -> Option<T>) -> Option<T> {
    value.or_else(|| default(settings))
}

pub(super) use {fields, filled, kept};
