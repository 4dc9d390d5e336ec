//! Engines that break a rule of locks and of the scheduler.

use super::*;

pub(super) fn locks() -> Vec<Broken> {
    vec![
        broken(
            "a lock's token doesn't grow across a release",
            |_| Arc::new(TokensBeginAgain::default()),
            &["l3_tokens_only_grow"],
        ),
        broken(
            "a lock is re-entrant",
            |data| HoldsBadly::layer(Grip::Reentrant, data),
            &["l2_nobody_takes_a_lock_that_is_held"],
        ),
        broken(
            "a late release frees the next holder's lock",
            |data| HoldsBadly::layer(Grip::ReleasesTheNext, data),
            &[
                "l5_a_stale_handle_leaves_the_next_holder_alone",
                "l5_at_its_expiry_a_lock_is_its_next_takers_alone",
            ],
        ),
        broken(
            "a late release says that all is well",
            |data| HoldsBadly::layer(Grip::ReleasesQuietly, data),
            &["l5_a_stale_handle_leaves_the_next_holder_alone"],
        ),
        broken(
            "a renewal adds",
            |data| HoldsBadly::layer(Grip::RenewalAdds, data),
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
            |data| HoldsBadly::layer(Grip::NotAbandoned, data),
            &["l7_a_dropped_lock_is_released"],
        ),
        broken(
            "a renewal after the expiry revives a lock",
            |_| Arc::new(RevivesExpired::default()),
            &["l5_an_expired_lock_is_not_revived"],
        ),
        broken(
            "a lock holds a millisecond longer",
            |data| HoldsBadly::layer(Grip::HeldLonger, data),
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

pub(super) fn schedules() -> Vec<Broken> {
    vec![
        broken(
            "65 boundaries fire",
            |data| KeepsTimeBadly::layer(Beat::One65th, data),
            &[
                "h13_a_tick_fires_the_first_64_and_skips_the_rest",
                "h13_what_fires_is_what_is_due_up_to_64",
            ],
        ),
        broken(
            "every missed boundary fires",
            |data| KeepsTimeBadly::layer(Beat::All, data),
            &[
                "h13_a_tick_fires_the_first_64_and_skips_the_rest",
                "h13_what_fires_is_what_is_due_up_to_64",
            ],
        ),
        broken(
            "one missed boundary fires",
            |data| KeepsTimeBadly::layer(Beat::One, data),
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
            |data| KeepsTimeBadly::layer(Beat::Drifts, data),
            &["h8_late_ticks_do_not_move_the_grid"],
        ),
        broken(
            "a boundary fires for each who ticks",
            |data| KeepsTimeBadly::layer(Beat::NotKeyed, data),
            &["h16_two_ticks_at_once_fire_each_boundary_once"],
        ),
        broken(
            "the boundary of a late fire is now",
            |data| KeepsTimeBadly::layer(Beat::BoundaryIsNow, data),
            &["h8_late_ticks_do_not_move_the_grid", "h8_schedules_keep_grids_of_their_own"],
        ),
        broken(
            "registering again postpones",
            |data| KeepsTimeBadly::layer(Beat::Postpones, data),
            &[
                "h9_the_same_period_keeps_grid_and_next_boundary",
                "h9_a_schedule_registered_at_every_start_still_fires",
            ],
        ),
        broken(
            "registering again as 1m for 60s postpones",
            |data| KeepsTimeBadly::layer(Beat::ComparesText, data),
            &["h9_the_same_period_keeps_grid_and_next_boundary"],
        ),
        broken(
            "registering again resumes",
            |data| KeepsTimeBadly::layer(Beat::Resumes, data),
            &["h12_a_schedule_registered_again_stays_paused"],
        ),
        broken(
            "a new period keeps the grid",
            |data| KeepsTimeBadly::layer(Beat::KeepsGrid, data),
            &["h10_a_new_period_begins_at_now"],
        ),
        broken(
            "a paused schedule fires",
            |data| KeepsTimeBadly::layer(Beat::FiresPaused, data),
            &["h11_a_paused_schedule_does_not_fire"],
        ),
        broken(
            "what was missed while paused fires",
            |data| KeepsTimeBadly::layer(Beat::FiresMissed, data),
            &["h11_what_was_missed_in_a_pause_is_skipped"],
        ),
        broken(
            "any text is a schedule",
            |data| KeepsTimeBadly::layer(Beat::AnyText, data),
            &[
                "h2_cron_texts_are_refused",
                "h2_signs_zeros_and_fractions_are_refused",
                "h3_more_than_ten_years_is_refused",
            ],
        ),
        broken(
            "an unknown schedule is removed",
            |data| KeepsTimeBadly::layer(Beat::RemovesUnknown, data),
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
