//! The broken engines, each with the rows that have to fail on it.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use alkstore_core::{Due, Headers, JobState, Lease, Payload, SettleAction, Timestamp};
use alkstore_suite::Data;

use crate::claims::{self, *};
use crate::edits::Edits;
use crate::harness::{Broken, MakeLayer};
use crate::locks::*;
use crate::queues::*;
use crate::schedules::*;
use crate::streams::{self, *};
use crate::txs::*;
use crate::wakes::*;

const NONE: Edits = Edits::NONE;

fn normalized(payload: &Payload) -> Payload {
    let value: serde_json::Value = payload.decode().unwrap_or_default();
    Payload::stored(value.to_string())
}

fn early(at: SystemTime, millis: i64) -> SystemTime {
    Timestamp::from(at).plus_millis(-millis).into()
}

fn settles<F>(data: Arc<dyn Data>, otherwise: F) -> Arc<dyn alkstore_suite::fault::Layer>
where
    F: Fn(SettleAction, &alkstore_core::JobRecord, Timestamp) -> SettleAction
        + Send
        + Sync
        + 'static,
{
    Arc::new(SettlesOtherwise(otherwise, data))
}

fn broken(name: &'static str, make: MakeLayer, rows: &'static [&'static str]) -> Broken {
    Broken { name, mechanisms: "", make, rows }
}

/// All of them.
pub(crate) fn all() -> Vec<Broken> {
    let groups = [
        ("C", common()),
        ("Q", queues()),
        ("Q", settlements()),
        ("S", streams()),
        ("N", notify()),
        ("L", locks()),
        ("H", schedules()),
        ("X", txs()),
        ("QSLHO", wakes()),
    ];
    let of_group = |(mechanisms, engines): (_, Vec<Broken>)| {
        engines.into_iter().map(move |engine| Broken { mechanisms, ..engine })
    };
    groups.into_iter().flat_map(of_group).collect()
}

fn common() -> Vec<Broken> {
    vec![
        broken(
            "a job's payload is normalized",
            |_| Edits { job: |_, _, job| job.payload = normalized(&job.payload), ..NONE }.layer(),
            &["c8_a_document_comes_back_byte_for_byte", "o4_a_payload_arrives_byte_for_byte"],
        ),
        broken(
            "an event's payload is normalized",
            |_| Edits { event: |event| event.payload = normalized(&event.payload), ..NONE }.layer(),
            &["c8_a_document_comes_back_byte_for_byte"],
        ),
        broken(
            "a message's payload is normalized",
            |_| Edits { message: |payload| *payload = normalized(payload), ..NONE }.layer(),
            &[
                "c8_a_document_comes_back_byte_for_byte",
                "n6_a_payload_arrives_byte_for_byte_at_any_size",
            ],
        ),
        broken(
            "a schedule's payload is normalized",
            |_| Edits { schedule: |spec| spec.payload = normalized(&spec.payload), ..NONE }.layer(),
            &["h5_a_payload_is_kept_byte_for_byte"],
        ),
        broken(
            "no payload is too large",
            |_| Edits { limits: |limits| limits.payload = usize::MAX, ..NONE }.layer(),
            &[
                "c11_a_payload_has_at_most_1_mib",
                "c12_an_option_sets_another_limit",
                "n7_the_payload_limit_holds_for_messages",
                "s14_the_payload_limit_holds_for_every_way_in",
                "h5_a_payload_is_checked_before_it_is_stored",
            ],
        ),
        broken(
            "a payload of exactly the limit is too large",
            |_| Edits { limits: |limits| limits.payload -= 1, ..NONE }.layer(),
            &[
                "c11_a_payload_has_at_most_1_mib",
                "c12_an_option_sets_another_limit",
                "n7_the_payload_limit_holds_for_messages",
            ],
        ),
        broken(
            "a job's headers are lost",
            |_| Edits { job: |_, _, job| job.headers = Headers::default(), ..NONE }.layer(),
            &[
                "c16_headers_travel_with_jobs_and_events",
                "q1_headers_and_payload_travel_through_every_state",
                "o3_headers_travel_with_a_delivery",
            ],
        ),
        broken(
            "an event's headers are lost",
            |_| Edits { event: |event| event.headers = Headers::default(), ..NONE }.layer(),
            &[
                "c16_headers_travel_with_jobs_and_events",
                "s2_headers_up_to_their_limits_travel_with_an_event",
            ],
        ),
        broken(
            "closing closes nothing",
            |_| ClosesBadly::new(Close::Never),
            &[
                "c48_a_closed_store_refuses_every_call",
                "c49_waiting_calls_end_with_closed",
                "c50_listeners_and_subscriptions_end_at_close",
                "c53_a_dropped_close_closes",
                "n14_a_listener_ends_when_its_store_is_closed",
                "s39_a_subscription_ends_when_its_store_is_closed",
            ],
        ),
        broken(
            "closing closes every store on the data",
            |_| ClosesBadly::new(Close::TooMuch),
            &["c52_another_open_on_the_same_data_goes_on"],
        ),
        broken(
            "closing again is an error",
            |_| ClosesBadly::new(Close::Once),
            &["c53_closing_again_is_fine"],
        ),
        broken(
            "who waits isn't told of the close",
            |_| ClosesBadly::new(Close::WaitersHang),
            &[
                "c49_waiting_calls_end_with_closed",
                "q74_a_waiter_ends_with_its_store",
                "l16_a_close_ends_the_wait",
                "h35_closing_the_store_ends_its_runners",
            ],
        ),
        broken(
            "the last handle's drop closes nothing",
            |_| ClosesBadly::new(Close::Leaks),
            &[
                "c56_listeners_and_subscriptions_end_with_the_last_handle",
                "n14_a_listener_ends_with_the_last_handle",
                "s39_a_subscription_ends_with_the_last_handle",
            ],
        ),
        broken(
            "maintenance does nothing",
            |_| Arc::new(MaintainsNothing),
            &["q53_maintenance_stores_what_time_implies", "q53_maintenance_goes_through_all_pages"],
        ),
        broken(
            "ids of one call descend",
            |_| Arc::new(InsertsBackwards),
            &[
                "c21_job_ids_are_unique_in_the_store_and_ascend_within_a_call",
                "q2_ids_of_one_call_ascend",
                "c8_a_document_comes_back_byte_for_byte",
                "c9_a_value_comes_back_as_serde_json_writes_it",
                "c10_an_escaped_nul_is_data",
                "c12_an_option_sets_another_limit",
                "c13_nesting_ends_at_127_on_every_way",
            ],
        ),
    ]
}

fn queues() -> Vec<Broken> {
    vec![
        broken(
            "a job is handed out twice",
            |_| Arc::new(HandsOutTwice::default()),
            &["q22_a_job_goes_to_one_claimant", "q22_batches_of_two_claimants_share_no_job"],
        ),
        broken(
            "priority is ignored",
            |_| Edits { job: |_, _, job| job.priority = 0, ..NONE }.layer(),
            &[
                "c29_any_priority_is_fine_and_higher_goes_first",
                "q11_a_priority_is_any_number_and_higher_comes_first",
                "q24_priority_goes_before_every_instant",
            ],
        ),
        broken(
            "a batch is out of order",
            |_| Edits { claimed: |claimed| claimed.jobs.reverse(), ..NONE }.layer(),
            &[
                "q24_of_equal_priority_the_longest_claimable_comes_first",
                "q11_a_priority_is_any_number_and_higher_comes_first",
                "q12_many_jobs_are_added_in_order",
                "q24_of_the_same_instant_the_lower_id_comes_first",
                "q24_priority_goes_before_every_instant",
                "q24_a_past_instant_counts_from_the_enqueue",
                "c25_an_instant_before_1970_counts_as_1970",
                "q26_a_batch_holds_no_more_than_was_taken_in",
            ],
        ),
        broken(
            "a batch is ordered by id",
            |_| Edits { claimed: |claimed| claimed.jobs.sort_by_key(|job| job.id), ..NONE }.layer(),
            &["q24_of_equal_priority_the_longest_claimable_comes_first"],
        ),
        broken(
            "a small batch takes one too many",
            |_| {
                Edits { most: |max| if (2..10).contains(&max) { max + 1 } else { max }, ..NONE }
                    .layer()
            },
            &["q23_a_claim_hands_out_at_most_so_many"],
        ),
        broken(
            "a claim of none takes one",
            |_| Edits { most: |max| max.max(1), ..NONE }.layer(),
            &["c26_an_extent_of_0_is_the_empty_result"],
        ),
        broken(
            "a job has one attempt more than it may",
            |_| {
                Edits {
                    job: |queue, opts, job| {
                        let default = if queue.is_outbox() { 5 } else { 3 };
                        let most = job.max_attempts.or(opts.max_attempts).unwrap_or(default);
                        job.max_attempts = Some(most.saturating_add(1));
                    },
                    claimed: |claimed| {
                        claimed.jobs.iter_mut().for_each(|job| job.max_attempts -= 1);
                    },
                    record: |record| record.max_attempts -= 1,
                    ..NONE
                }
                .layer()
            },
            &[
                "q29_a_job_that_kills_its_workers_stops_after_its_attempts",
                "q37_a_retry_on_the_last_attempt_is_death",
                "q13_a_job_may_have_its_own_number_of_attempts",
                "q19_the_key_of_a_job_that_time_has_ended_is_free",
                "q31_a_claim_goes_on_behind_any_number_of_exhausted_jobs",
                "q53_maintenance_stores_what_time_implies",
                "q54_a_lapsed_claim_without_attempts_is_dead",
                "q55_a_lapse_on_the_last_attempt_wins_over_the_expiry",
                "q56_cancel_goes_by_the_clock",
                "q63_a_waiter_isn_t_held_up_by_jobs_that_end",
            ],
        ),
        broken(
            "a unique key is ignored",
            |_| Edits { job: |_, _, job| job.unique_key = None, ..NONE }.layer(),
            &[
                "q15_a_live_job_keeps_its_key",
                "q17_jobs_of_one_call_share_a_key",
                "q17_a_transaction_keeps_to_keys_as_well",
                "q18_two_enqueues_of_one_key_add_one_job",
                "q18_two_batches_with_the_same_keys_add_each_once",
                "q18_two_transactions_that_stage_one_key_add_one_job",
                "q19_a_lapsed_claim_with_attempts_left_keeps_its_key",
                "q20_an_enqueue_answers_with_the_job_that_a_transaction_committed",
                "q20_an_enqueue_never_answers_with_a_job_that_was_rolled_back",
                "q20_an_enqueue_waits_for_a_staged_key_no_longer_than_the_lock_timeout",
                "q50_a_requeue_leaves_a_key_to_the_job_that_holds_it",
                "q50_of_two_with_one_key_the_lower_id_is_requeued",
                "x22_two_transactions_with_one_key_add_one_job",
                "x23_who_waits_too_long_for_a_staged_key_is_unavailable",
                "x24_keys_hold_inside_the_transaction",
            ],
        ),
        broken(
            "what the clock made dead keeps its key",
            |_| Arc::new(DeadKeepsKey),
            &["q19_the_key_of_a_job_that_time_has_ended_is_free"],
        ),
        broken(
            "many jobs are added one by one",
            |_| Arc::new(InsertsOneByOne),
            &["c39_a_dropped_batch_is_nothing_or_the_whole"],
        ),
        broken(
            "a delay is rounded down",
            |_| {
                Edits {
                    job: |_, _, job| {
                        if let Due::After(delay) = &mut job.due {
                            *delay = delay.saturating_sub(Duration::from_nanos(u64::from(
                                delay.subsec_nanos() % 1_000_000,
                            )));
                        }
                    },
                    ..NONE
                }
                .layer()
            },
            &[
                "c22_durations_round_up_to_the_millisecond",
                "q7_a_delay_rounds_up_to_the_millisecond",
            ],
        ),
        broken(
            "run_at is early by 1 ms",
            |_| {
                Edits {
                    job: |_, _, job| {
                        if let Due::At(at) = &mut job.due {
                            *at = at.plus_millis(-1);
                        }
                    },
                    ..NONE
                }
                .layer()
            },
            &["q8_a_job_runs_from_its_instant_on"],
        ),
        broken(
            "a delay is a second late",
            |_| {
                Edits {
                    job: |_, _, job| {
                        if let Due::After(delay) = &mut job.due
                            && !delay.is_zero()
                            && *delay < Duration::from_secs(1)
                        {
                            *delay = delay.saturating_add(Duration::from_secs(1));
                        }
                    },
                    ..NONE
                }
                .layer()
            },
            &["q7_a_delay_is_neither_early_nor_late"],
        ),
        broken(
            "an outbox's queue has the defaults of any queue",
            |_| {
                Edits {
                    job: |queue, opts, job| {
                        if queue.is_outbox() {
                            opts.visibility_timeout = Some(Duration::from_secs(300));
                            job.max_attempts = job.max_attempts.or(Some(3));
                        }
                    },
                    ..NONE
                }
                .layer()
            },
            &[
                "q5_the_queue_of_an_outbox_has_its_own_defaults",
                "o2_a_delivery_is_stamped_for_an_outbox",
            ],
        ),
        broken(
            "an expired job is handed out",
            |_| Arc::new(HandsOutExpired::default()),
            &[
                "q30_an_expired_job_is_never_handed_out",
                "q14_an_expiry_counts_from_the_enqueue",
                "q19_the_key_of_a_job_that_time_has_ended_is_free",
                "q19_a_transaction_takes_the_key_of_a_job_that_time_has_ended",
                "q30_a_claim_that_lapses_after_the_expiry_ends_dead",
                "q31_a_claim_goes_on_behind_any_number_of_expired_jobs",
                "q50_a_key_that_time_has_freed_is_no_hindrance",
                "q52_retention_counts_from_the_death_that_time_brought",
                "q53_maintenance_stores_what_time_implies",
                "q53_maintenance_goes_through_all_pages",
                "q54_an_expired_job_is_dead",
                "q54_a_claim_that_lapsed_after_the_expiry_is_dead_since_the_expiry",
                "q56_cancel_goes_by_the_clock",
            ],
        ),
        broken(
            "a job expires a millisecond late",
            |_| {
                Edits {
                    job: |_, _, job| {
                        if let Some(expires) = &mut job.expires {
                            *expires = expires.saturating_add(Duration::from_millis(1));
                        }
                    },
                    record: |record| {
                        record.expires_at = record.expires_at.map(|at| early(at, 1));
                    },
                    ..NONE
                }
                .layer()
            },
            &[
                "q14_an_expiry_counts_from_the_enqueue",
                "q19_the_key_of_a_job_that_time_has_ended_is_free",
                "q19_a_transaction_takes_the_key_of_a_job_that_time_has_ended",
                "q30_a_claim_that_lapses_after_the_expiry_ends_dead",
                "q31_a_claim_goes_on_behind_any_number_of_expired_jobs",
                "q50_a_key_that_time_has_freed_is_no_hindrance",
                "q52_retention_counts_from_the_death_that_time_brought",
                "q53_maintenance_stores_what_time_implies",
                "q53_maintenance_goes_through_all_pages",
                "q54_an_expired_job_is_dead",
                "q54_a_claim_that_lapsed_after_the_expiry_is_dead_since_the_expiry",
                "q56_cancel_goes_by_the_clock",
                "q30_an_expired_job_is_never_handed_out",
                "c24_an_instant_is_reached_at_that_very_millisecond",
            ],
        ),
        broken(
            "a dead job beyond its retention is shown",
            |_| Arc::new(ShowsBeyondRetention::default()),
            &["q52_a_dead_job_is_gone_once_its_retention_is_over"],
        ),
        broken(
            "a claim refuses a lapsed job",
            |_| Arc::new(RefusesLapsed::default()),
            &[
                "q28_a_lapsed_claim_is_claimable_by_anyone",
                "q27_a_claim_token_only_grows",
                "q29_a_job_that_kills_its_workers_stops_after_its_attempts",
                "q33_a_dropped_job_lapses_with_its_attempt_charged",
                "q42_a_settlement_holds_for_its_own_claim_only",
                "q42_a_lapsed_claim_settles_nothing",
                "q63_a_waiter_sees_a_claim_lapse",
                "q67_a_waiter_works_off_a_backlog_of_lapsed_claims",
                "q26_due_and_lapsed_jobs_are_taken_in_together",
                "o11_a_late_settlement_leaves_the_newer_claim_alone",
            ],
        ),
        broken(
            "a lapsed claim is shown as claimed",
            |_| Arc::new(ShowsLapsedAsClaimed::default()),
            &["q54_a_lapsed_claim_with_attempts_left_is_pending"],
        ),
        broken(
            "stats see an expiry after a sweep only",
            |_| Arc::new(ExpiresBySweepOnly),
            &["q54_an_expired_job_is_dead"],
        ),
        broken(
            "requeue keeps the attempts",
            |_| Arc::new(RequeueKeepsAttempts::default()),
            &["q49_a_requeued_job_begins_anew"],
        ),
        broken(
            "requeue takes one job",
            |_| Arc::new(RequeuesOne),
            &["q49_all_dead_jobs_are_requeued_at_once"],
        ),
        broken(
            "purge takes live jobs",
            |_| Arc::new(PurgesTheLiving),
            &["q51_a_purge_deletes_dead_jobs_only"],
        ),
        broken(
            "a pause lets claims go on",
            |_| Arc::new(PausesBadly::new(Pause::ClaimsGoOn)),
            &["q60_claims_of_a_paused_queue_find_nothing", "o25_a_paused_outbox_delivers_nothing"],
        ),
        broken(
            "a pause stops enqueues",
            |_| Arc::new(PausesBadly::new(Pause::EnqueuesStop)),
            &["q60_everything_else_goes_on_in_a_paused_queue"],
        ),
        broken(
            "a pause always says that it changed something",
            |_| Arc::new(PausesBadly::new(Pause::AlwaysChanges)),
            &[
                "c33_a_bool_says_whether_something_changed",
                "q60_of_two_pauses_one_changes_something",
            ],
        ),
        broken(
            "cancel takes pending jobs only",
            |_| Arc::new(CancelsPendingOnly),
            &["q47_a_job_that_is_pending_or_claimed_can_be_cancelled"],
        ),
        broken(
            "cancel takes what the clock made dead",
            |_| Arc::new(CancelsTheDead),
            &["q56_cancel_goes_by_the_clock"],
        ),
        broken(
            "stats count what is delayed as ready",
            |_| {
                Edits {
                    stats: |stats| {
                        for stats in stats {
                            stats.ready += std::mem::take(&mut stats.delayed);
                        }
                    },
                    ..NONE
                }
                .layer()
            },
            &["q58_stats_count_jobs_by_where_they_stand"],
        ),
        broken(
            "a paused queue without jobs isn't listed",
            |_| {
                Edits {
                    stats: |stats| {
                        stats.retain(|s| s.ready + s.delayed + s.claimed + s.dead > 0);
                    },
                    ..NONE
                }
                .layer()
            },
            &["q59_every_queue_with_a_job_or_paused_is_listed_by_name"],
        ),
        broken(
            "the queues of outboxes aren't listed",
            |_| {
                Edits {
                    stats: |stats| stats.retain(|s| !s.name.starts_with("__alkstore_")),
                    ..NONE
                }
                .layer()
            },
            &[
                "o26_the_backing_queue_is_listed_among_the_queues",
                "q59_every_queue_with_a_job_or_paused_is_listed_by_name",
            ],
        ),
        broken(
            "queues are listed backwards",
            |_| Edits { stats: |stats| stats.reverse(), ..NONE }.layer(),
            &["q59_every_queue_with_a_job_or_paused_is_listed_by_name"],
        ),
        broken(
            "why a job died is lost",
            |_| Edits { record: |record| record.last_error = None, ..NONE }.layer(),
            &[
                "q48_a_dead_job_keeps_what_it_was",
                "q29_a_job_that_kills_its_workers_stops_after_its_attempts",
                "q30_an_expired_job_is_never_handed_out",
                "q37_a_retry_on_the_last_attempt_is_death",
                "q37_a_retry_doesn_t_look_at_the_expiry",
                "q38_no_error_text_makes_a_settlement_fail",
                "q38_an_error_text_is_cut_at_a_character",
                "q39_a_failed_job_is_dead_whatever_attempts_are_left",
                "q54_a_lapsed_claim_without_attempts_is_dead",
                "q54_an_expired_job_is_dead",
                "q55_a_lapse_on_the_last_attempt_wins_over_the_expiry",
                "o7_a_panicking_delivery_counts_as_failed",
            ],
        ),
    ]
}

fn settlements() -> Vec<Broken> {
    vec![
        broken(
            "a stale ack of the same worker id is taken",
            |data| FencesBadly::new(Lax::AckOfSameWorker, data),
            &["q42_a_settlement_holds_for_its_own_claim_only"],
        ),
        broken(
            "a late heartbeat steals the job back",
            |data| FencesBadly::new(Lax::Heartbeat, data),
            &["q42_a_settlement_holds_for_its_own_claim_only"],
        ),
        broken(
            "a stale failure is taken",
            |data| FencesBadly::new(Lax::Fail, data),
            &["q42_a_settlement_holds_for_its_own_claim_only"],
        ),
        broken(
            "a settlement at the very deadline is taken",
            |data| FencesBadly::new(Lax::AtDeadline, data),
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
            "cancel leaves the holder's ack Ok",
            |_| Arc::new(CancelsQuietly::default()),
            &["q47_a_job_that_is_pending_or_claimed_can_be_cancelled"],
        ),
    ]
}

fn streams() -> Vec<Broken> {
    vec![
        broken(
            "an offset is reused after a trim",
            |_| Arc::new(ReusesOffsets::default()),
            &["s7_offsets_are_not_reused_after_a_trim_of_everything"],
        ),
        broken(
            "many events are appended one by one",
            |_| Arc::new(AppendsOneByOne),
            &["s4_publishers_at_once_leave_no_gap"],
        ),
        broken(
            "an event appears behind a reader",
            |_| Arc::new(ShowsLate::default()),
            &["s8_no_reader_skips_an_event_while_several_publish"],
        ),
        broken(
            "a subscription skips between pages",
            |_| Arc::new(SkipsBetweenPages),
            &["s32_a_subscription_yields_what_was_and_then_what_comes"],
        ),
        broken(
            "a saved offset goes backward",
            |_| Arc::new(LosesPlace(Place::Backward)),
            &["s18_saving_never_goes_backward"],
        ),
        broken(
            "an offset beyond the head is saved",
            |_| Arc::new(LosesPlace(Place::BeyondHead)),
            &["s19_no_place_beyond_the_head_is_saved"],
        ),
        broken(
            "a rewind beyond the head is taken",
            |_| Arc::new(LosesPlace(Place::RewindBeyondHead)),
            &["s19_no_place_beyond_the_head_is_saved"],
        ),
        broken(
            "a rewind goes forward only",
            |_| Arc::new(LosesPlace(Place::ForwardOnly)),
            &["s21_rewind_is_the_way_back"],
        ),
        broken(
            "an unknown consumer is forgotten",
            |_| Arc::new(LosesPlace(Place::ForgetsUnknown)),
            &["s24_a_forgotten_consumer_starts_anew"],
        ),
        broken(
            "reading saves",
            |_| Arc::new(LosesPlace(Place::SavesByItself)),
            &[
                "s22_a_consumer_reads_what_lies_after_its_place",
                "s23_nothing_is_saved_unless_it_is_said",
                "s34_two_subscriptions_of_one_consumer_both_get_every_event",
            ],
        ),
        broken(
            "a trim beyond the head is refused",
            |_| Arc::new(RefusesTrimBeyondHead),
            &["s26_a_trim_beyond_the_head_trims_everything_there_is"],
        ),
        broken(
            "a trim keeps its horizon",
            |_| {
                Edits { horizon: |offset| (offset.get() - 1).try_into().unwrap_or(offset), ..NONE }
                    .layer()
            },
            &["s25_a_trim_keeps_the_offsets_of_what_remains"],
        ),
        broken(
            "lag counts what was trimmed",
            |_| Edits { streams: |all| streams::lag_counts_trimmed(all), ..NONE }.layer(),
            &["s30_lag_counts_the_retained_events_after_a_place"],
        ),
        broken(
            "a stream with a consumer alone isn't listed",
            |_| Edits { streams: |all| all.retain(|stream| stream.last.get() > 0), ..NONE }.layer(),
            &["s31_the_list_has_every_stream_published_to_or_consumed"],
        ),
        broken(
            "a stream's key is lost",
            |_| Edits { event: |event| event.key = None, ..NONE }.layer(),
            &["s2_an_event_comes_back_as_it_was_published"],
        ),
        broken(
            "an event of the same key replaces the one before",
            |_| {
                Edits {
                    read: |events| {
                        let all = events.clone();
                        events.retain(|event| {
                            event.key.is_none()
                                || all.iter().rfind(|e| e.key == event.key).map(|e| e.offset)
                                    == Some(event.offset)
                        });
                    },
                    ..NONE
                }
                .layer()
            },
            &["s13_a_key_neither_orders_nor_deduplicates"],
        ),
    ]
}

fn notify() -> Vec<Broken> {
    vec![
        broken(
            "equal messages of a transaction are folded",
            |_| Arc::new(FoldsMessages::new(Fold::EqualInTx)),
            &[
                "n4_equal_messages_are_never_folded",
                "x29_staged_messages_arrive_each_in_order_at_commit",
            ],
        ),
        broken(
            "equal messages in a row are folded",
            |_| Arc::new(FoldsMessages::new(Fold::EqualInARow)),
            &["n4_equal_messages_are_never_folded"],
        ),
        broken(
            "messages of a transaction arrive backwards",
            |_| Arc::new(FoldsMessages::new(Fold::Backwards)),
            &["x29_staged_messages_arrive_each_in_order_at_commit"],
        ),
        broken(
            "a commit loses its messages",
            |_| Arc::new(FoldsMessages::new(Fold::Lost)),
            &[
                "n3_a_message_is_delivered_at_commit",
                "x29_staged_messages_arrive_each_in_order_at_commit",
            ],
        ),
        broken(
            "a message is sent before the commit",
            |_| Arc::new(FoldsMessages::new(Fold::Early)),
            &["n3_a_message_is_delivered_at_commit", "n3_a_rolled_back_message_is_never_delivered"],
        ),
        broken(
            "a new listener hears the last message",
            |_| Arc::new(FoldsMessages::new(Fold::Replay)),
            &["n2_nothing_is_replayed"],
        ),
        broken(
            "a large message is lost",
            |_| Arc::new(FoldsMessages::new(Fold::LargeLost)),
            &["n6_a_payload_arrives_byte_for_byte_at_any_size"],
        ),
        broken(
            "a full listener drops the newest",
            |data| ListensBadly::new(Ear::DropsNewest, data),
            &["n8_a_full_buffer_drops_the_oldest"],
        ),
        broken(
            "a full listener drops quietly",
            |data| ListensBadly::new(Ear::DropsQuietly, data),
            &["n8_a_full_buffer_drops_the_oldest", "n8_a_buffer_holds_1024_messages_unless_told"],
        ),
        broken(
            "a listener is unbounded",
            |data| ListensBadly::new(Ear::Unbounded, data),
            &[
                "n8_a_full_buffer_drops_the_oldest",
                "n8_a_buffer_holds_1024_messages_unless_told",
                "n9_a_buffer_holds_16_mib_unless_told",
            ],
        ),
        broken(
            "a listener outlives its store",
            |data| ListensBadly::new(Ear::Outlives, data),
            &[
                "n14_a_listener_ends_when_its_store_is_closed",
                "n14_a_listener_ends_with_the_last_handle",
                "c50_listeners_and_subscriptions_end_at_close",
            ],
        ),
        broken(
            "one of many listeners hears",
            |data| ListensBadly::new(Ear::OneOfMany, data),
            &[
                "n1_a_message_reaches_every_listener_of_its_channel",
                "n2_nothing_is_replayed",
                "n3_a_message_is_delivered_at_commit",
                "n4_equal_messages_are_never_folded",
                "n5_messages_come_in_their_notifiers_order",
                "n6_a_payload_arrives_byte_for_byte_at_any_size",
                "n8_a_full_buffer_drops_the_oldest",
                "n10_a_slow_listener_slows_nobody",
                "c43_a_wake_is_never_missed",
            ],
        ),
    ]
}

fn locks() -> Vec<Broken> {
    vec![
        broken(
            "a lock's token doesn't grow across a release",
            |_| Arc::new(TokensBeginAgain::default()),
            &["l3_tokens_only_grow"],
        ),
        broken(
            "a lock is re-entrant",
            |data| HoldsBadly::new(Grip::Reentrant, data),
            &["l2_nobody_takes_a_lock_that_is_held"],
        ),
        broken(
            "a late release frees the next holder's lock",
            |data| HoldsBadly::new(Grip::ReleasesTheNext, data),
            &[
                "l5_a_stale_handle_leaves_the_next_holder_alone",
                "l5_at_its_expiry_a_lock_is_its_next_takers_alone",
            ],
        ),
        broken(
            "a late release says that all is well",
            |data| HoldsBadly::new(Grip::ReleasesQuietly, data),
            &["l5_a_stale_handle_leaves_the_next_holder_alone"],
        ),
        broken(
            "a renewal adds",
            |data| HoldsBadly::new(Grip::RenewalAdds, data),
            &["l6_a_renewal_is_a_full_new_window"],
        ),
        broken(
            "a dropped lock call keeps the lock",
            |_| Arc::new(KeepsDroppedLocks),
            &[
                "l15_a_dropped_try_lock_gives_back_what_it_took",
                "c40_a_dropped_acquisition_is_given_back_at_once",
            ],
        ),
        broken(
            "a dropped lock stays held",
            |data| HoldsBadly::new(Grip::NotAbandoned, data),
            &["l7_a_dropped_lock_is_released"],
        ),
        broken(
            "a renewal after the expiry revives a lock",
            |_| Arc::new(RevivesExpired::default()),
            &["l5_an_expired_lock_is_not_revived"],
        ),
        broken(
            "a lock holds a millisecond longer",
            |data| HoldsBadly::new(Grip::HeldLonger, data),
            &[
                "l4_a_lock_is_held_until_its_very_expiry",
                "l5_an_expired_lock_is_not_revived",
                "l5_at_its_expiry_a_lock_is_its_next_takers_alone",
                "l8_a_ttl_is_1_ms_to_10_years",
                "l13_an_expiry_lets_in_who_waits",
                "c24_an_instant_is_reached_at_that_very_millisecond",
            ],
        ),
        broken(
            "the scheduler's lock isn't listed",
            |_| {
                Edits { locks: |locks| locks.retain(|l| !l.name.starts_with("__")), ..NONE }.layer()
            },
            &[
                "l10_the_list_has_the_schedulers_lock",
                "h21_leadership_is_a_lock_that_everyone_sees",
            ],
        ),
        broken(
            "many runners lead the scheduler",
            |_| Arc::new(ManyLeaders),
            &[
                "h23_a_second_runner_is_refused_before_it_fires",
                "h23_one_of_two_runners_leads",
                "h23_of_two_that_start_at_once_one_leads",
            ],
        ),
    ]
}

fn schedules() -> Vec<Broken> {
    vec![
        broken(
            "65 boundaries fire",
            |data| KeepsTimeBadly::new(Beat::One65th, data),
            &[
                "h13_a_tick_fires_the_first_64_and_skips_the_rest",
                "h13_what_fires_is_what_is_due_up_to_64",
            ],
        ),
        broken(
            "every missed boundary fires",
            |data| KeepsTimeBadly::new(Beat::All, data),
            &[
                "h13_a_tick_fires_the_first_64_and_skips_the_rest",
                "h13_what_fires_is_what_is_due_up_to_64",
            ],
        ),
        broken(
            "one missed boundary fires",
            |data| KeepsTimeBadly::new(Beat::One, data),
            &[
                "h13_a_tick_fires_the_first_64_and_skips_the_rest",
                "h13_what_fires_is_what_is_due_up_to_64",
                "h10_a_new_period_begins_at_now",
                "h13_the_bound_is_for_each_schedule",
                "h13_jobs_are_fired_in_the_order_of_their_boundaries",
                "h14_a_schedule_far_behind_is_brought_up_to_date_at_once",
            ],
        ),
        broken(
            "the grid drifts",
            |data| KeepsTimeBadly::new(Beat::Drifts, data),
            &["h8_late_ticks_do_not_move_the_grid"],
        ),
        broken(
            "a boundary fires for each who ticks",
            |data| KeepsTimeBadly::new(Beat::NotKeyed, data),
            &["h16_two_ticks_at_once_fire_each_boundary_once"],
        ),
        broken(
            "the boundary of a late fire is now",
            |data| KeepsTimeBadly::new(Beat::BoundaryIsNow, data),
            &["h8_late_ticks_do_not_move_the_grid", "h8_schedules_keep_grids_of_their_own"],
        ),
        broken(
            "registering again postpones",
            |data| KeepsTimeBadly::new(Beat::Postpones, data),
            &[
                "h9_the_same_period_keeps_grid_and_next_boundary",
                "h9_a_schedule_registered_at_every_start_still_fires",
            ],
        ),
        broken(
            "registering again as 1m for 60s postpones",
            |data| KeepsTimeBadly::new(Beat::ComparesText, data),
            &["h9_the_same_period_keeps_grid_and_next_boundary"],
        ),
        broken(
            "registering again resumes",
            |data| KeepsTimeBadly::new(Beat::Resumes, data),
            &["h12_a_schedule_registered_again_stays_paused"],
        ),
        broken(
            "a new period keeps the grid",
            |data| KeepsTimeBadly::new(Beat::KeepsGrid, data),
            &["h10_a_new_period_begins_at_now"],
        ),
        broken(
            "a paused schedule fires",
            |data| KeepsTimeBadly::new(Beat::FiresPaused, data),
            &["h11_a_paused_schedule_does_not_fire"],
        ),
        broken(
            "what was missed while paused fires",
            |data| KeepsTimeBadly::new(Beat::FiresMissed, data),
            &["h11_what_was_missed_in_a_pause_is_skipped"],
        ),
        broken(
            "any text is a schedule",
            |data| KeepsTimeBadly::new(Beat::AnyText, data),
            &[
                "h2_cron_texts_are_refused",
                "h2_signs_zeros_and_fractions_are_refused",
                "h3_more_than_ten_years_is_refused",
            ],
        ),
        broken(
            "an unknown schedule is removed",
            |data| KeepsTimeBadly::new(Beat::RemovesUnknown, data),
            &[
                "h33_unscheduling_says_whether_there_was_one",
                "c33_a_bool_says_whether_something_changed",
            ],
        ),
        broken(
            "a boundary fires a millisecond early",
            |data| Arc::new(FiresEarly(data)),
            &["h7_a_boundary_is_due_at_its_very_instant"],
        ),
        broken(
            "the options of a schedule are lost",
            |_| Edits { schedule: |spec| spec.opts.max_attempts = None, ..NONE }.layer(),
            &["h17_each_option_stamps_the_fired_job"],
        ),
        broken(
            "sleeping ends at once",
            |_| Arc::new(NeverSleeps),
            &[
                "h27_between_two_tries_it_backs_off",
                "o12_between_two_tries_it_backs_off",
                "o22_after_a_fault_a_run_backs_off_from_50_ms_to_5_s",
                "h31_a_standby_backs_off_from_50_ms_to_5_s",
            ],
        ),
    ]
}

fn txs() -> Vec<Broken> {
    vec![
        broken(
            "a staged settlement pins nothing",
            |data| StagesBadly::new(Slip::NotPinned, data),
            &[
                "x15_a_staged_settlement_pins_the_claim_beyond_its_deadline",
                "x15_claims_pass_a_pinned_job_by",
                "q69_a_staged_settlement_keeps_everybody_else_away",
                "x17_a_settlement_that_is_staged_or_took_effect_is_the_last",
                "x21_what_must_wait_for_a_pinned_job_waits",
                "x21_a_settlement_outside_waits_for_the_pin_of_a_transaction",
                "q71_a_cancel_waits_for_a_pinned_job_no_longer_than_the_lock_timeout",
                "x24_a_settlement_frees_its_key_inside_the_transaction",
            ],
        ),
        broken(
            "a rollback keeps staged jobs",
            |data| StagesBadly::new(Slip::RollbackKeepsJobs, data),
            &[
                "x2_rollback_undoes_everything",
                "x11_with_tx_rolls_back_on_err_and_passes_the_callers_own_error",
            ],
        ),
        broken(
            "a rollback keeps a staged offset",
            |data| StagesBadly::new(Slip::RollbackKeepsOffset, data),
            &[
                "x2_rollback_undoes_everything",
                "s20_an_offset_saved_in_a_transaction_shares_its_fate",
            ],
        ),
        broken(
            "a rollback commits",
            |data| StagesBadly::new(Slip::RollbackCommits, data),
            &[
                "x2_rollback_undoes_everything",
                "x11_with_tx_rolls_back_on_err_and_passes_the_callers_own_error",
                "x12_with_tx_rolls_back_on_a_panic_which_goes_on",
                "x16_after_a_rollback_the_handle_settles_as_before",
                "x19_effects_and_ack_commit_together",
                "x7_a_rollback_wakes_nobody",
                "x37_a_dropped_rollback_has_rolled_back",
                "x26_a_rollback_leaves_no_gap_in_the_places",
                "x31_after_unavailable_only_rollback_is_left",
                "s36_a_rolled_back_event_is_never_seen",
                "q69_effects_and_ack_commit_together",
                "x21_what_must_wait_for_a_pinned_job_waits",
                "n3_a_rolled_back_message_is_never_delivered",
                "s6_a_rollback_leaves_no_gap",
                "q70_after_a_rollback_a_job_settles_as_before",
            ],
        ),
        broken(
            "a dropped transaction keeps staged jobs",
            |data| StagesBadly::new(Slip::DropKeepsJobs, data),
            &["x3_a_dropped_transaction_is_rolled_back"],
        ),
        broken(
            "others see staged jobs",
            |data| StagesBadly::new(Slip::DirtyReads, data),
            &[
                "x2_rollback_undoes_everything",
                "x4_nobody_else_sees_what_is_staged",
                "x19_effects_and_ack_commit_together",
                "x7_a_rollback_wakes_nobody",
                "x37_a_dropped_rollback_has_rolled_back",
                "x3_a_dropped_transaction_is_rolled_back",
                "x6_a_commit_wakes_who_waits_for_what_it_brought",
                "x11_with_tx_rolls_back_on_err_and_passes_the_callers_own_error",
                "x12_with_tx_rolls_back_on_a_panic_which_goes_on",
                "x22_a_key_that_a_transaction_staged_waits_for_its_commit",
                "x22_a_key_that_was_staged_and_rolled_back_is_free",
                "x22_two_transactions_with_one_key_add_one_job",
                "o24_a_rolled_back_delivery_never_was",
                "q20_an_enqueue_never_answers_with_a_job_that_was_rolled_back",
            ],
        ),
        broken(
            "a transaction doesn't see its own jobs",
            |data| StagesBadly::new(Slip::BlindToJobs, data),
            &["x5_reads_inside_see_what_the_transaction_wrote"],
        ),
        broken(
            "a transaction doesn't see its own offsets",
            |data| StagesBadly::new(Slip::BlindToOffsets, data),
            &["x5_reads_inside_see_what_the_transaction_wrote"],
        ),
        broken(
            "a transaction reads the events it staged",
            |data| StagesBadly::new(Slip::ShowsStaged, data),
            &[
                "x25_a_staged_event_has_no_place_before_the_commit",
                "s10_a_transaction_reads_the_committed_log",
            ],
        ),
        broken(
            "staged events carry the instant of the commit",
            |data| StagesBadly::new(Slip::InstantOfCommit, data),
            &[
                "x8_every_instant_is_that_of_the_staging_call",
                "s11_an_event_is_of_the_instant_it_was_staged_at",
            ],
        ),
        broken(
            "a commit loses its events",
            |data| StagesBadly::new(Slip::LosesEvents, data),
            &[
                "x1_commit_makes_everything_staged_visible",
                "s10_staged_events_appear_at_commit_in_their_order",
                "x6_a_commit_wakes_who_waits_for_what_it_brought",
                "x10_with_tx_commits_on_ok_and_returns_the_value",
                "x25_a_staged_event_has_no_place_before_the_commit",
                "x26_events_take_their_places_at_commit",
                "x26_the_events_of_a_transaction_stay_in_order_and_together",
                "x27_publishing_in_opposite_orders_both_commit",
                "x27_interleaved_publishing_in_opposite_orders_both_commit",
                "x36_a_transaction_dropped_anywhere_is_all_or_nothing",
                "s9_transactions_in_opposite_orders_both_commit",
                "s20_an_effect_and_its_offset_commit_together",
                "c8_the_smallest_documents_come_back",
                "s36_a_waiting_subscription_is_woken_by_every_handle",
            ],
        ),
        broken(
            "a commit loses its offsets",
            |data| StagesBadly::new(Slip::LosesOffsets, data),
            &[
                "x1_commit_makes_everything_staged_visible",
                "s20_an_offset_saved_in_a_transaction_shares_its_fate",
            ],
        ),
        broken(
            "a staged settlement isn't fenced",
            |data| StagesBadly::new(Slip::NotFenced, data),
            &[
                "x18_a_settlement_at_the_deadline_is_lost_when_it_is_staged",
                "x18_a_stale_claim_is_lost_inside_a_transaction_too",
            ],
        ),
        broken(
            "a staged settlement takes effect at once",
            |data| StagesBadly::new(Slip::SettlesAtOnce, data),
            &[
                "x2_rollback_undoes_everything",
                "x4_nobody_else_sees_what_is_staged",
                "x19_effects_and_ack_commit_together",
                "x7_a_rollback_wakes_nobody",
                "x37_a_dropped_rollback_has_rolled_back",
                "x3_a_dropped_transaction_is_rolled_back",
                "x6_a_settlement_that_commits_wakes_who_waits_for_the_job",
                "x11_with_tx_rolls_back_on_err_and_passes_the_callers_own_error",
                "x12_with_tx_rolls_back_on_a_panic_which_goes_on",
                "x16_after_a_rollback_the_handle_settles_as_before",
                "x16_a_rollback_after_the_deadline_leaves_the_job_claimable",
                "x21_what_must_wait_for_a_pinned_job_waits",
                "x21_a_settlement_outside_waits_for_the_pin_of_a_transaction",
                "q70_after_a_rollback_a_job_settles_as_before",
            ],
        ),
    ]
}

fn wakes() -> Vec<Broken> {
    vec![
        broken(
            "an enqueue wakes nobody",
            |_| Misses::new(Miss::Enqueue),
            &[
                "q62_an_enqueue_wakes_a_waiter",
                "q62_many_jobs_wake_as_many_waiters",
                "q64_no_wake_is_missed",
                "o19_a_waiting_run_is_woken_by_work",
            ],
        ),
        broken(
            "a settlement wakes nobody",
            |_| Misses::new(Miss::Settle),
            &["q62_a_settlement_that_gives_back_wakes_a_waiter"],
        ),
        broken(
            "a requeue wakes nobody",
            |_| Misses::new(Miss::Requeue),
            &["q62_a_requeue_wakes_a_waiter"],
        ),
        broken(
            "a resumed queue wakes nobody",
            |_| Misses::new(Miss::Resume),
            &["q61_a_waiter_sleeps_through_a_pause", "o19_a_waiting_run_is_woken_by_a_resume"],
        ),
        broken(
            "a publish wakes nobody",
            |_| Misses::new(Miss::Publish),
            &[
                "s36_a_waiting_subscription_is_woken_by_every_handle",
                "s32_a_subscription_yields_what_was_and_then_what_comes",
            ],
        ),
        broken(
            "a released lock wakes nobody",
            |_| Misses::new(Miss::Release),
            &["l13_a_release_wakes_who_waits", "l13_all_who_wait_get_it_in_turn"],
        ),
        broken(
            "a dropped lock wakes nobody",
            |_| Misses::new(Miss::Abandon),
            &["l13_a_release_wakes_who_waits"],
        ),
        broken(
            "a changed schedule wakes nobody",
            |_| Misses::new(Miss::Schedule),
            &["h29_a_changed_schedule_wakes_the_runner"],
        ),
        broken(
            "a fire wakes nobody",
            |_| Misses::new(Miss::Fire),
            &["h18_a_fire_wakes_who_waits_for_work"],
        ),
        broken(
            "a commit wakes nobody",
            |_| Misses::new(Miss::Commit),
            &[
                "x6_a_commit_wakes_who_waits_for_what_it_brought",
                "x6_a_settlement_that_commits_wakes_who_waits_for_the_job",
                "q65_a_commit_wakes_and_a_rollback_doesn_t",
                "s36_a_waiting_subscription_is_woken_by_every_handle",
            ],
        ),
        broken(
            "a commit's wakes come when its parts are staged",
            |_| Misses::new(Miss::StageInstead),
            &["x6_a_commit_wakes_who_waits_for_what_it_brought"],
        ),
        broken(
            "what comes before the wait is missed",
            |_| Misses::new(Miss::BeforeWait),
            &["c43_work_between_the_look_and_the_wait_is_seen"],
        ),
        broken(
            "who waits isn't told when work falls due",
            |_| Misses::new(Miss::Due),
            &[
                "q63_a_waiter_sleeps_until_work_falls_due",
                "c44_a_waiter_sleeps_until_work_falls_due",
            ],
        ),
        broken(
            "who waits isn't told of work that is held",
            |_| Misses::new(Miss::Blocked),
            &[
                "q66_a_waiter_looks_again_for_a_job_that_it_can_t_take",
                "c45_a_waiter_looks_again_for_due_work_that_it_could_not_take",
            ],
        ),
    ]
}

/// The layers that the broken engines are made of, with no fault in them.
pub(crate) fn whole() -> Vec<Broken> {
    struct Forwards;
    impl alkstore_suite::fault::Layer for Forwards {}

    let engines = vec![
        broken("everything is forwarded", |_| Arc::new(Forwards), &[]),
        broken("nothing is edited", |_| NONE.layer(), &[]),
        broken("no wake is missed", |_| Misses::new(Miss::Nothing), &[]),
        broken("transactions are staged well", |data| StagesBadly::new(Slip::Nothing, data), &[]),
    ];
    engines.into_iter().map(|engine| Broken { mechanisms: "CQSNLHOX", ..engine }).collect()
}
