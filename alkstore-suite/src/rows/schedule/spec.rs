//! The grammar of a schedule's text.

use alkstore_core::{Error, MAX_LEASE, ScheduleOpts, StoreExt, Timestamp};

use super::{QUEUE, every, find, fired, secs, tick};
use crate::cx::Cx;

pub(crate) async fn h1_a_number_and_a_unit_make_a_period(cx: Cx) {
    for (spec, period) in [
        ("@every 1s", 1),
        ("@every 59s", 59),
        ("@every 90s", 90),
        ("@every 2m", 120),
        ("@every 10m", 600),
        ("@every 3h", 10_800),
        ("@every 4d", 345_600),
        ("@every 100d", 8_640_000),
    ] {
        let schedule = every(&cx.store, spec, spec).await;
        assert_eq!(schedule.period, secs(period), "{spec}");
        assert_eq!(schedule.spec, spec, "the text is kept as it was given");
    }
}

pub(crate) async fn h1_the_longest_number_is_understood(cx: Cx) {
    for spec in ["@every 315360000s", "@every 5256000m", "@every 87600h", "@every 3650d"] {
        let schedule = every(&cx.store, spec, spec).await;
        assert_eq!(schedule.period, MAX_LEASE, "{spec}");
        let next = cx.now().await.plus(MAX_LEASE);
        assert_eq!(Timestamp::from(schedule.next_at), next, "{spec}");
    }
}

/// Each text is refused with itself in the error, and nothing is left behind.
async fn refused(cx: &Cx, specs: &[&str]) {
    for &given in specs {
        let registered = cx.store.schedule("s", given, QUEUE, &1, ScheduleOpts::new()).await;
        let error = registered.expect_err(given);
        let text = error.to_string();
        assert!(!text.contains(char::is_control), "{text:?} escapes what it quotes");
        match error {
            Error::InvalidSpec { spec, .. } => assert_eq!(spec, given),
            other => panic!("{given:?}: {other}"),
        }
    }
    assert_eq!(cx.store.schedules().await.unwrap(), [], "nothing was stored");
    cx.advance(secs(86_400)).await;
    assert_eq!(tick(&cx.store).await, 0);
    assert_eq!(fired(&cx.store).await, []);
}

pub(crate) async fn h2_cron_texts_are_refused(cx: Cx) {
    refused(
        &cx,
        &[
            "* * * * *",
            "*/5 * * * *",
            "0 0 * * 0",
            "0 30 9 * * MON-FRI",
            "@yearly",
            "@monthly",
            "@weekly",
            "@daily",
            "@midnight",
            "@hourly",
            "@reboot",
            "CRON_TZ=UTC 0 5 * * *",
            "R/PT5M",
        ],
    )
    .await;
}

pub(crate) async fn h2_texts_with_a_part_missing_are_refused(cx: Cx) {
    refused(
        &cx,
        &[
            "",
            "@",
            "@every",
            "@every ",
            "@every s",
            "@every 5",
            "@every  ",
            "5m",
            "every 5m",
            " 5m",
            "@ 5m",
            "@every5m",
            "@every:5m",
            "@every-5m",
            "@ every 5m",
            "every@ 5m",
        ],
    )
    .await;
}

pub(crate) async fn h2_signs_zeros_and_fractions_are_refused(cx: Cx) {
    refused(
        &cx,
        &[
            "@every +5s",
            "@every -5s",
            "@every --5s",
            "@every 0s",
            "@every 0d",
            "@every 00s",
            "@every 05s",
            "@every 0005m",
            "@every 1.5h",
            "@every .5h",
            "@every 1e3s",
            "@every 0x10s",
            "@every 1_000s",
            "@every 1,000s",
            "@every 1'000s",
            "@every ½h",
            "@every infs",
            "@every NaNs",
        ],
    )
    .await;
}

pub(crate) async fn h2_white_space_but_the_one_space_is_refused(cx: Cx) {
    refused(
        &cx,
        &[
            "@every  5s",
            "@every\t5s",
            "@every\n5s",
            "@every \t5s",
            "@every\u{a0}5s",
            "@every\u{2003}5s",
            "@every \u{200b}5s",
            " @every 5s",
            "\u{feff}@every 5s",
            "@every 5s ",
            "@every 5s\n",
            "@every 5s\r\n",
            "@every 5s\0",
            "@every 5 s",
            "@every 5\ts",
            "@every 1 0s",
            "@every 1m 30s",
        ],
    )
    .await;
}

pub(crate) async fn h2_other_units_are_refused(cx: Cx) {
    refused(
        &cx,
        &[
            "@every 5S",
            "@every 5M",
            "@every 5H",
            "@every 5D",
            "@EVERY 5s",
            "@Every 5s",
            "@every 5ms",
            "@every 5us",
            "@every 5ns",
            "@every 5w",
            "@every 5y",
            "@every 5mo",
            "@every 5sec",
            "@every 5min",
            "@every 5hours",
            "@every 5days",
            "@every 5ss",
            "@every 1h30m",
            "@every s5",
            "@every 5s5",
            "@every 5s,",
            "@every 5\u{17f}",
            "@every 5\u{ff53}",
            "@every PT5M",
        ],
    )
    .await;
}

pub(crate) async fn h2_digits_of_other_scripts_are_refused(cx: Cx) {
    refused(
        &cx,
        &[
            "@every ５s",
            "@every 1０s",
            "@every ٥s",
            "@every ५s",
            "@every ²s",
            "@every Ⅴs",
            "@every 𝟝s",
            "@every 五s",
        ],
    )
    .await;
}

pub(crate) async fn h2_a_refused_text_leaves_the_schedule_as_it_was(cx: Cx) {
    let before = every(&cx.store, "s", "@every 5s").await;
    cx.advance(secs(2)).await;
    for spec in ["@every 0s", "@hourly", "@every 3651d", ""] {
        let registered = cx.store.schedule("s", spec, "other", &2, ScheduleOpts::new()).await;
        assert!(matches!(registered, Err(Error::InvalidSpec { .. })), "{spec:?}: {registered:?}");
        assert_eq!(find(&cx.store, "s").await, before, "{spec:?}");
    }
}

pub(crate) async fn h3_more_than_ten_years_is_refused(cx: Cx) {
    refused(
        &cx,
        &[
            "@every 315360001s",
            "@every 5256001m",
            "@every 87601h",
            "@every 3651d",
            "@every 10000d",
            "@every 1000000000d",
        ],
    )
    .await;
}

pub(crate) async fn h3_a_number_of_any_size_is_refused_without_overflow(cx: Cx) {
    let digits = format!("@every {}s", "9".repeat(400));
    let many_digits = format!("@every 1{}d", "0".repeat(100_000));
    refused(
        &cx,
        &[
            // One more than what 32 and 64 bits hold.
            "@every 2147483648s",
            "@every 4294967297s",
            "@every 9223372036854775807s",
            "@every 9223372036854775808s",
            "@every 18446744073709551615s",
            "@every 18446744073709551617s",
            "@every 340282366920938463463374607431768211457s",
            // Those that come out as one unit where seconds or milliseconds wrap in 64 bits.
            "@every 2305843009213693953s",
            "@every 576460752303423489m",
            "@every 4611686018427387905m",
            "@every 144115188075855873h",
            "@every 1152921504606846977h",
            "@every 18014398509481985d",
            "@every 144115188075855873d",
            &digits,
            &many_digits,
        ],
    )
    .await;
}
