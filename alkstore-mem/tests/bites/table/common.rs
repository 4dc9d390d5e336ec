//! Engines that break a rule of what every mechanism has in common.

use super::*;

pub(super) fn common() -> Vec<Broken> {
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
            |_| ClosesBadly::layer(Close::Never),
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
            |_| ClosesBadly::layer(Close::TooMuch),
            &["c52_another_open_on_the_same_data_goes_on"],
        ),
        broken(
            "closing again is an error",
            |_| ClosesBadly::layer(Close::Once),
            &["c53_closing_again_is_fine"],
        ),
        broken(
            "who waits isn't told of the close",
            |_| ClosesBadly::layer(Close::WaitersHang),
            &[
                "c49_waiting_calls_end_with_closed",
                "q74_a_waiter_ends_with_its_store",
                "l16_a_close_ends_the_wait",
                "h35_closing_the_store_ends_its_runners",
            ],
        ),
        broken(
            "the last handle's drop closes nothing",
            |_| ClosesBadly::layer(Close::Leaks),
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
