//! Engines that break a rule of queues.

use super::*;

pub(super) fn queues() -> Vec<Broken> {
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
            "dead jobs are requeued and purged one by one",
            |_| Arc::new(TakesDeadOneByOne),
            &["c39_a_dropped_requeue_or_purge_took_all_or_none"],
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
                "q22_a_lapsed_job_goes_to_one_claimant",
                "q41_a_heartbeat_counts_from_now",
                "q69_a_settlement_that_is_lost_holds_nothing",
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
