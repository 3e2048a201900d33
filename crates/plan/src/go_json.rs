//! Reads and writes JSON as Go's `encoding/json` does.

use std::{borrow::Cow, collections::BTreeMap, fmt, io};

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{
        DeserializeOwned, DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor, value::StrDeserializer,
    },
    forward_to_deserialize_any,
};
use serde_json::{
    Error,
    ser::{Formatter, Serializer},
    value::RawValue,
};

/// JSON as Go's `encoding/json` writes it: compact, with `<`, `>`, `&`, U+2028 and U+2029 escaped.
///
/// The checksum of a plan is computed from its bytes, and a server with the original software must write the same bytes
/// for the same plan. Otherwise taking over a cluster would apply every plan again.
pub fn to_vec<T: Serialize + ?Sized>(value: &T) -> serde_json::Result<Vec<u8>> {
    let mut out = Vec::new();
    value.serialize(&mut Serializer::with_formatter(&mut out, GoFormatter))?;
    Ok(out)
}

struct GoFormatter;

impl Formatter for GoFormatter {
    fn write_string_fragment<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        let mut rest = fragment;
        while let Some(at) = rest.find(['<', '>', '&', '\u{2028}', '\u{2029}']) {
            writer.write_all(&rest.as_bytes()[..at])?;
            // `find` stopped at a character, so there is one.
            let Some(found) = rest[at..].chars().next() else { break };
            write!(writer, "\\u{:04x}", found as u32)?;
            rest = &rest[at + found.len_utf8()..];
        }
        writer.write_all(rest.as_bytes())
    }
}

/// Parses JSON as leniently as Go: field names are case-insensitive, the last of several equal fields is used, unknown
/// fields are ignored, and `null` is the zero value everywhere. An object is never accepted as a list.
///
/// An error names the field, but never contains its value, which can be secret.
pub fn from_slice<T: DeserializeOwned>(bytes: &[u8]) -> serde_json::Result<T> {
    // Like Go, replace invalid UTF-8 and unpaired surrogates.
    let text = whole_characters(String::from_utf8_lossy(bytes));
    // The syntax is validated here; below, only types can be wrong.
    let whole: &RawValue = serde_json::from_str(&text)?;
    T::deserialize(Value(whole.get()))
}

/// The text with `\ufffd` for each `\uXXXX` that is an unpaired surrogate.
fn whole_characters(text: Cow<'_, str>) -> Cow<'_, str> {
    let code = |at: usize| -> Option<u16> {
        let digits = text.get(at..at + 6)?.strip_prefix("\\u")?;
        u16::from_str_radix(digits, 16).ok()
    };
    let (mut out, mut copied, mut at) = (String::new(), 0, 0);
    while let Some(found) = text[at..].find('\\') {
        at += found;
        match code(at) {
            // A surrogate pair.
            Some(0xd800..=0xdbff) if matches!(code(at + 6), Some(0xdc00..=0xdfff)) => at += 12,
            Some(0xd800..=0xdfff) => {
                out.push_str(&text[copied..at]);
                out.push_str("\\ufffd");
                at += 6;
                copied = at;
            }
            // The escaped character, which can be another backslash.
            _ => at = (at + 2).min(text.len()),
        }
        while !text.is_char_boundary(at) {
            at += 1;
        }
    }
    if copied == 0 {
        return text;
    }
    out.push_str(&text[copied..]);
    Cow::Owned(out)
}

/// The text of one valid value, which is parsed only when its type is known.
#[derive(Clone, Copy)]
struct Value<'de>(&'de str);

impl<'de> Value<'de> {
    fn is_null(self) -> bool {
        self.0 == "null"
    }

    fn misfit(self, wanted: &str) -> Error {
        let found = match self.0.as_bytes().first() {
            Some(b'{') => "an object",
            Some(b'[') => "a list",
            Some(b'"') => "a text",
            Some(b't' | b'f') => "true or false",
            _ => "a number that does not fit",
        };
        Error::custom(format!("{found} where {wanted} is expected"))
    }

    fn read<T: Deserialize<'de>>(self, wanted: &str) -> serde_json::Result<T> {
        serde_json::from_str(self.0).map_err(|_| self.misfit(wanted))
    }

    /// The entries in the order of the text.
    fn entries(self) -> serde_json::Result<Vec<(Cow<'de, str>, Value<'de>)>> {
        if self.is_null() {
            return Ok(Vec::new());
        }
        self.read::<Entries<'de>>("an object").map(|entries| entries.0)
    }
}

struct Entries<'de>(Vec<(Cow<'de, str>, Value<'de>)>);

impl<'de> Deserialize<'de> for Entries<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Entries<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some((key, value)) = map.next_entry::<Cow<'de, str>, &'de RawValue>()? {
                    entries.push((key, Value(value.get())));
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}

impl<'de> Deserializer<'de> for Value<'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        serde_json::Deserializer::from_str(self.0).deserialize_any(visitor)
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_bool(!self.is_null() && self.read("true or false")?)
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        // `-0` would be parsed as a floating-point number.
        visitor.visit_i64(if matches!(self.0, "null" | "-0") { 0 } else { self.read("a whole number")? })
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match if self.is_null() { Cow::Borrowed("") } else { self.read::<Text<'de>>("a text")?.0 } {
            Cow::Borrowed(text) => visitor.visit_borrowed_str(text),
            Cow::Owned(text) => visitor.visit_string(text),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let items: Vec<&'de RawValue> = if self.is_null() { Vec::new() } else { self.read("a list")? };
        visitor.visit_seq(Items { rest: items.into_iter(), index: 0 })
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let fields = self.entries()?;
        visitor.visit_map(Fields { rest: fields.into_iter(), value: None })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        names: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let mut fields = BTreeMap::new();
        for (key, value) in self.entries()? {
            // `null` keeps the default.
            if let Some(name) = field(&key, names).filter(|_| !value.is_null()) {
                fields.insert(name, value);
            }
        }
        let fields: Vec<_> = fields.into_iter().map(|(name, value)| (Cow::Borrowed(name), value)).collect();
        visitor.visit_map(Fields { rest: fields.into_iter(), value: None })
    }

    forward_to_deserialize_any! {
        i8 i16 i32 i128 u8 u16 u32 u64 u128 f32 f64 char bytes byte_buf unit unit_struct tuple
        tuple_struct enum identifier ignored_any
    }
}

/// A string, borrowed if it contains no escapes.
struct Text<'de>(Cow<'de, str>);

impl<'de> Deserialize<'de> for Text<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Take;
        impl<'de> Visitor<'de> for Take {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(Take)
    }
}

/// The field that Go would set: the one with exactly this name, otherwise one that differs only in case.
fn field(key: &str, names: &'static [&'static str]) -> Option<&'static str> {
    let fold =
        |text: &str| -> String { text.chars().map(|letter| unfolded(letter).to_ascii_lowercase()).collect() };
    let same = names.iter().find(|name| **name == key);
    same.or_else(|| {
        let key = fold(key);
        names.iter().find(|name| fold(name) == key)
    })
    .copied()
}

/// The two non-ASCII letters that are equal to an ASCII letter in another case: long s, and the Kelvin sign.
fn unfolded(letter: char) -> char {
    match letter {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        other => other,
    }
}

struct Items<'de> {
    rest: std::vec::IntoIter<&'de RawValue>,
    index: usize,
}

impl<'de> SeqAccess<'de> for Items<'de> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        let Some(item) = self.rest.next() else { return Ok(None) };
        let index = self.index;
        self.index += 1;
        seed.deserialize(Value(item.get())).map(Some).map_err(|error| within(&format!("[{index}]"), &error))
    }
}

struct Fields<'de> {
    rest: std::vec::IntoIter<(Cow<'de, str>, Value<'de>)>,
    value: Option<(Cow<'de, str>, Value<'de>)>,
}

impl<'de> MapAccess<'de> for Fields<'de> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        self.value = self.rest.next();
        let Some((key, _)) = &self.value else { return Ok(None) };
        seed.deserialize(StrDeserializer::new(key)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        let Some((key, value)) = self.value.take() else {
            return Err(Error::custom("value without a key"));
        };
        seed.deserialize(value).map_err(|error| within(&format!(".{key}"), &error))
    }
}

/// Adds the position to an error.
fn within(place: &str, error: &Error) -> Error {
    let text = error.to_string();
    match text.strip_prefix("at ") {
        Some(rest) => Error::custom(format!("at {place}{rest}")),
        None => Error::custom(format!("at {place}: {text}")),
    }
}
