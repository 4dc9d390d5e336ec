/// Every row, by mechanism, with the capabilities it needs: the one list that the table of rows
/// and the tests of a column are made from.
#[doc(hidden)]
#[macro_export]
macro_rules! __rows {
    ([$($callback:tt)*] $($args:tt)*) => {
        $($callback)* ! { $($args)*
            common {
            }
            queue {
                q1_a_job_comes_back_as_it_was_enqueued []
            }
            stream {
            }
            notify {
            }
            lock {
            }
            schedule {
            }
            outbox {
            }
            tx {
                x1_commit_makes_everything_staged_visible []
                x2_rollback_undoes_everything []
                x3_a_dropped_transaction_is_rolled_back []
                x4_nobody_else_sees_what_is_staged []
                x5_reads_inside_see_what_the_transaction_wrote []
                x6_a_commit_wakes_who_waits_for_what_it_brought []
                x6_a_settlement_that_commits_wakes_who_waits_for_the_job []
                x7_a_rollback_wakes_nobody []
                x8_every_instant_is_that_of_the_staging_call []
                x9_a_type_that_is_not_the_engines_transaction_is_none []
                x10_with_tx_commits_on_ok_and_returns_the_value []
                x11_with_tx_rolls_back_on_err_and_passes_the_callers_own_error []
                x12_with_tx_rolls_back_on_a_panic_which_goes_on [unwinds]
                x12_a_panic_before_the_first_await_rolls_back_too [unwinds]
                x13_the_closure_borrows_from_its_caller []
                x14_a_transaction_of_another_store_is_refused_and_stays_usable []
                x14_a_transaction_on_other_data_is_refused []
                x14_a_clone_of_the_store_is_the_same_store []
                x15_a_staged_settlement_pins_the_claim_beyond_its_deadline []
                x15_claims_pass_a_pinned_job_by []
                x16_after_a_rollback_the_handle_settles_as_before []
                x16_a_rollback_after_the_deadline_leaves_the_job_claimable []
                x17_a_settlement_that_is_staged_or_took_effect_is_the_last []
                x18_a_settlement_at_the_deadline_is_lost_when_it_is_staged []
                x18_a_stale_claim_is_lost_inside_a_transaction_too []
                x19_effects_and_ack_commit_together []
                x20_retry_and_fail_do_inside_what_they_do_outside []
                x21_what_must_wait_for_a_pinned_job_waits []
                x21_a_settlement_outside_waits_for_the_pin_of_a_transaction []
                x22_a_key_that_a_transaction_staged_waits_for_its_commit []
                x22_a_key_that_was_staged_and_rolled_back_is_free []
                x22_two_transactions_with_one_key_add_one_job []
                x23_who_waits_too_long_for_a_staged_key_is_unavailable []
                x23_no_cycle_of_transactions_hangs []
                x24_keys_hold_inside_the_transaction []
                x24_a_settlement_frees_its_key_inside_the_transaction []
                x25_a_staged_event_has_no_place_before_the_commit []
                x26_events_take_their_places_at_commit []
                x26_a_rollback_leaves_no_gap_in_the_places []
                x26_the_events_of_a_transaction_stay_in_order_and_together []
                x27_publishing_in_opposite_orders_both_commit []
                x27_interleaved_publishing_in_opposite_orders_both_commit []
                x28_a_staged_offset_is_monotone_too []
                x28_a_staged_offset_overtaken_by_a_larger_one_changes_nothing []
                x29_staged_messages_arrive_each_in_order_at_commit []
                x30_an_error_that_leaves_the_data_alone_leaves_it_usable []
                x30_it_commits_after_a_lost_claim []
                x30_a_batch_that_is_refused_stages_nothing []
                x31_after_unavailable_only_rollback_is_left []
                x32_other_work_goes_on_beside_an_open_transaction []
                x32_calls_inside_the_closure_of_with_tx_dont_deadlock []
                x33_a_transaction_without_writes_leaves_nothing_behind []
                x34_a_dropped_begin_leaves_nothing_open []
                x35_a_dropped_staging_call_staged_all_of_it_or_nothing []
                x36_a_transaction_dropped_anywhere_is_all_or_nothing []
                x36_with_tx_dropped_anywhere_is_all_or_nothing []
                x37_a_dropped_rollback_has_rolled_back []
                x38_of_commit_and_cancel_one_wins []
                x38_what_a_rollback_frees_goes_to_one_claimant []
                x38_nobody_sees_half_a_commit []
                x38_one_key_from_inside_and_outside_adds_one_job []
                x38_a_claimed_job_was_committed_whole []
            }
        }
    };
}
