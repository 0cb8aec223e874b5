//! `strftime` of Python, in UTC.

/// A problem, worded to follow the name of what failed.
type Result<T> = std::result::Result<T, String>;

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// The time `seconds` after 1970 in UTC, laid out as `strftime` does; an unknown directive is an error.
pub(super) fn strftime(format: &str, seconds: u64) -> Result<String> {
    let date = Date::from_days(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let hour_12 = (hour + 11) % 12 + 1;
    let (month, weekday) = (MONTHS[date.month - 1], DAYS[date.weekday]);
    let mut out = String::new();
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            out.push(character);
            continue;
        }
        let mut directive = characters.next();
        let padded = directive != Some('-');
        if !padded {
            directive = characters.next();
        }
        let number = |value: u64, width: usize| match padded {
            true => format!("{value:0width$}"),
            false => value.to_string(),
        };
        out.push_str(&match directive {
            Some('Y') => number(date.year, 4),
            Some('y') => number(date.year % 100, 2),
            Some('m') => number(date.month as u64, 2),
            Some('d') => number(date.day, 2),
            Some('e') => format!("{:2}", date.day),
            Some('j') => number(date.day_of_year, 3),
            Some('H') => number(hour, 2),
            Some('I') => number(hour_12, 2),
            Some('M') => number(minute, 2),
            Some('S') => number(second, 2),
            Some('p') => (if hour < 12 { "AM" } else { "PM" }).to_owned(),
            Some('B') => month.to_owned(),
            Some('b' | 'h') => month[..3].to_owned(),
            Some('A') => weekday.to_owned(),
            Some('a') => weekday[..3].to_owned(),
            Some('F') => format!("{:04}-{:02}-{:02}", date.year, date.month, date.day),
            Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('Z') => "UTC".to_owned(),
            Some('%') => "%".to_owned(),
            Some(other) => return Err(format!("strftime_now does not know %{other}")),
            None => return Err("the format of strftime_now ends in %".to_owned()),
        });
    }
    Ok(out)
}

/// A day of the Gregorian calendar.
struct Date {
    year: u64,
    /// 1 … 12
    month: usize,
    /// 1 … 31
    day: u64,
    /// 1 … 366
    day_of_year: u64,
    /// 0 is Sunday
    weekday: usize,
}

impl Date {
    /// The day `days` after 1 January 1970.
    fn from_days(days: u64) -> Self {
        let is_leap =
            |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
        // 146,097 days make 400 years, after which the calendar repeats.
        let mut year = 1970 + days / 146_097 * 400;
        let mut rest = days % 146_097;
        while rest >= 365 + u64::from(is_leap(year)) {
            rest -= 365 + u64::from(is_leap(year));
            year += 1;
        }
        let day_of_year = rest + 1;
        let february = 28 + u64::from(is_leap(year));
        let mut month = 1;
        for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
            if rest < length {
                break;
            }
            rest -= length;
            month += 1;
        }
        Self { year, month, day: rest + 1, day_of_year, weekday: ((days + 4) % 7) as usize }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_python() {
        // From datetime.fromtimestamp(s, timezone.utc).strftime("%Y-%m-%d %H:%M:%S %j %a %b %-d %I %p").
        for (seconds, expected) in [
            (0, "1970-01-01 00:00:00 001 Thu Jan 1 12 AM"),
            (951_782_400, "2000-02-29 00:00:00 060 Tue Feb 29 12 AM"),
            (1_735_689_599, "2024-12-31 23:59:59 366 Tue Dec 31 11 PM"),
            (4_107_542_400, "2100-03-01 00:00:00 060 Mon Mar 1 12 AM"),
            (13_569_465_600, "2400-01-01 00:00:00 001 Sat Jan 1 12 AM"),
        ] {
            let made = strftime("%F %T %j %a %b %-d %I %p", seconds);
            assert_eq!(made.as_deref(), Ok(expected));
        }
        assert!(strftime("%Q", 0).is_err());
        assert!(strftime("%", 0).is_err());
    }
}
