//! Engines that break a rule of settlements.

use super::*;

pub(super) fn settlements() -> Vec<Broken> {
    vec![
        broken(
            "a stale ack of the same worker id is taken",
            |data| FencesBadly::layer(Lax::AckOfSameWorker, data),
            &["q42_a_settlement_holds_for_its_own_claim_only"],
        ),
        broken(
            "a late heartbeat steals the job back",
            |data| FencesBadly::layer(Lax::Heartbeat, data),
            &["q42_a_settlement_holds_for_its_own_claim_only"],
        ),
        broken(
            "a stale failure is taken",
            |data| FencesBadly::layer(Lax::Fail, data),
            &["q42_a_settlement_holds_for_its_own_claim_only"],
        ),
        broken(
            "a settlement at the very deadline is taken",
            |data| FencesBadly::layer(Lax::AtDeadline, data),
            &["q43_a_claim_holds_until_just_before_its_deadline"],
        ),
        broken(
            "a heartbeat adds",
            |data| settles(data, claims::heartbeat_adds),
            &["q41_a_heartbeat_counts_from_now"],
        ),
        broken(
            "a heartbeat never shortens",
            |data| settles(data, claims::heartbeat_never_shortens),
            &["q41_a_heartbeat_counts_from_now"],
        ),
        broken(
            "a retry ignores max_attempts",
            |data| settles(data, claims::retry_for_ever),
            &["q37_a_retry_on_the_last_attempt_is_death"],
        ),
        broken(
            "a release charges the attempt",
            |data| settles(data, claims::release_charges),
            &["q40_a_released_job_has_its_attempt_back"],
        ),
        broken(
            "a retry ignores the delay it is given",
            |data| settles(data, claims::retry_ignores_delay),
            &[
                "q35_a_retry_takes_the_delay_it_is_given",
                "q10_the_longest_delay_is_far_away",
                "q62_a_settlement_that_gives_back_wakes_a_waiter",
                "q37_a_retry_on_the_last_attempt_is_death",
                "q49_a_requeued_job_begins_anew",
            ],
        ),
        broken(
            "the backoff is linear",
            |data| settles(data, claims::backoff_is_linear),
            &["q36_a_backoff_doubles_within_half_and_all_of_a_step"],
        ),
        broken(
            "the backoff has no jitter",
            |data| settles(data, claims::backoff_has_no_jitter),
            &["q36_a_backoff_is_spread_over_its_range"],
        ),
        broken(
            "the backoff has no cap",
            |data| settles(data, claims::backoff_has_no_cap),
            &["q36_a_backoff_is_at_most_an_hour"],
        ),
        broken(
            "the backoff overflows",
            |data| settles(data, claims::backoff_overflows),
            &["q36_a_backoff_stays_in_its_range_at_any_attempt"],
        ),
        broken(
            "an error text with NUL is refused",
            |_| Arc::new(RefusesErrorText),
            &["q38_no_error_text_makes_a_settlement_fail"],
        ),
        broken(
            "a dropped claim stays claimed",
            |_| Arc::new(KeepsDroppedClaims),
            &[
                "q32_a_dropped_claim_is_given_back",
                "q32_a_dropped_batch_is_given_back_whole",
                "c40_a_dropped_acquisition_is_given_back_at_once",
            ],
        ),
        broken(
            "a dropped claim is charged",
            |_| Arc::new(ChargesDroppedClaims),
            &[
                "q32_a_dropped_claim_is_given_back",
                "c40_a_dropped_acquisition_is_given_back_at_once",
            ],
        ),
        broken(
            "a settlement has two steps",
            |_| Arc::new(SettlesInTwoSteps),
            &["c39_a_dropped_settlement_took_effect_or_not"],
        ),
        broken(
            "cancel leaves the holder's ack Ok",
            |_| Arc::new(CancelsQuietly::default()),
            &["q47_a_job_that_is_pending_or_claimed_can_be_cancelled"],
        ),
    ]
}
