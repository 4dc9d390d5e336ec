//! Engines that break a rule of transactions and of wakes.

use super::*;

pub(super) fn txs() -> Vec<Broken> {
    vec![
        broken(
            "a staged settlement pins nothing",
            |data| StagesBadly::layer(Slip::NotPinned, data),
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
            |data| StagesBadly::layer(Slip::RollbackKeepsJobs, data),
            &[
                "x2_rollback_undoes_everything",
                "x11_with_tx_rolls_back_on_err_and_passes_the_callers_own_error",
            ],
        ),
        broken(
            "a rollback keeps a staged offset",
            |data| StagesBadly::layer(Slip::RollbackKeepsOffset, data),
            &[
                "x2_rollback_undoes_everything",
                "s20_an_offset_saved_in_a_transaction_shares_its_fate",
            ],
        ),
        broken(
            "a rollback commits",
            |data| StagesBadly::layer(Slip::RollbackCommits, data),
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
            |data| StagesBadly::layer(Slip::DropKeepsJobs, data),
            &["x3_a_dropped_transaction_is_rolled_back"],
        ),
        broken(
            "others see staged jobs",
            |data| StagesBadly::layer(Slip::DirtyReads, data),
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
            |data| StagesBadly::layer(Slip::BlindToJobs, data),
            &["x5_reads_inside_see_what_the_transaction_wrote"],
        ),
        broken(
            "a transaction doesn't see its own offsets",
            |data| StagesBadly::layer(Slip::BlindToOffsets, data),
            &["x5_reads_inside_see_what_the_transaction_wrote"],
        ),
        broken(
            "a transaction reads the events it staged",
            |data| StagesBadly::layer(Slip::ShowsStaged, data),
            &[
                "x25_a_staged_event_has_no_place_before_the_commit",
                "s10_a_transaction_reads_the_committed_log",
            ],
        ),
        broken(
            "staged events carry the instant of the commit",
            |data| StagesBadly::layer(Slip::InstantOfCommit, data),
            &[
                "x8_every_instant_is_that_of_the_staging_call",
                "s11_an_event_is_of_the_instant_it_was_staged_at",
            ],
        ),
        broken(
            "a commit loses its events",
            |data| StagesBadly::layer(Slip::LosesEvents, data),
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
            |data| StagesBadly::layer(Slip::LosesOffsets, data),
            &[
                "x1_commit_makes_everything_staged_visible",
                "s20_an_offset_saved_in_a_transaction_shares_its_fate",
            ],
        ),
        broken(
            "a staged settlement isn't fenced",
            |data| StagesBadly::layer(Slip::NotFenced, data),
            &[
                "x18_a_settlement_at_the_deadline_is_lost_when_it_is_staged",
                "x18_a_stale_claim_is_lost_inside_a_transaction_too",
            ],
        ),
        broken(
            "a staged settlement takes effect at once",
            |data| StagesBadly::layer(Slip::SettlesAtOnce, data),
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

pub(super) fn wakes() -> Vec<Broken> {
    vec![
        broken(
            "an enqueue wakes nobody",
            |_| Misses::layer(Miss::Enqueue),
            &[
                "q62_an_enqueue_wakes_a_waiter",
                "q62_many_jobs_wake_as_many_waiters",
                "q64_no_wake_is_missed",
                "o19_a_waiting_run_is_woken_by_work",
            ],
        ),
        broken(
            "a settlement wakes nobody",
            |_| Misses::layer(Miss::Settle),
            &["q62_a_settlement_that_gives_back_wakes_a_waiter"],
        ),
        broken(
            "a requeue wakes nobody",
            |_| Misses::layer(Miss::Requeue),
            &["q62_a_requeue_wakes_a_waiter"],
        ),
        broken(
            "a resumed queue wakes nobody",
            |_| Misses::layer(Miss::Resume),
            &["q61_a_waiter_sleeps_through_a_pause", "o19_a_waiting_run_is_woken_by_a_resume"],
        ),
        broken(
            "a publish wakes nobody",
            |_| Misses::layer(Miss::Publish),
            &[
                "s36_a_waiting_subscription_is_woken_by_every_handle",
                "s32_a_subscription_yields_what_was_and_then_what_comes",
            ],
        ),
        broken(
            "a released lock wakes nobody",
            |_| Misses::layer(Miss::Release),
            &["l13_a_release_wakes_who_waits", "l13_all_who_wait_get_it_in_turn"],
        ),
        broken(
            "a dropped lock wakes nobody",
            |_| Misses::layer(Miss::Abandon),
            &["l13_a_release_wakes_who_waits"],
        ),
        broken(
            "a changed schedule wakes nobody",
            |_| Misses::layer(Miss::Schedule),
            &["h29_a_changed_schedule_wakes_the_runner"],
        ),
        broken(
            "a fire wakes nobody",
            |_| Misses::layer(Miss::Fire),
            &["h18_a_fire_wakes_who_waits_for_work"],
        ),
        broken(
            "a commit wakes nobody",
            |_| Misses::layer(Miss::Commit),
            &[
                "x6_a_commit_wakes_who_waits_for_what_it_brought",
                "x6_a_settlement_that_commits_wakes_who_waits_for_the_job",
                "q65_a_commit_wakes_and_a_rollback_doesn_t",
                "s36_a_waiting_subscription_is_woken_by_every_handle",
            ],
        ),
        broken(
            "a commit's wakes come when its parts are staged",
            |_| Misses::layer(Miss::StageInstead),
            &["x6_a_commit_wakes_who_waits_for_what_it_brought"],
        ),
        broken(
            "what comes before the wait is missed",
            |_| Misses::layer(Miss::BeforeWait),
            &["c43_work_between_the_look_and_the_wait_is_seen"],
        ),
        broken(
            "who waits isn't told when work falls due",
            |_| Misses::layer(Miss::Due),
            &[
                "q63_a_waiter_sleeps_until_work_falls_due",
                "c44_a_waiter_sleeps_until_work_falls_due",
            ],
        ),
        broken(
            "who waits isn't told of work that is held",
            |_| Misses::layer(Miss::Blocked),
            &[
                "q66_a_waiter_looks_again_for_a_job_that_it_can_t_take",
                "c45_a_waiter_looks_again_for_due_work_that_it_could_not_take",
            ],
        ),
    ]
}
