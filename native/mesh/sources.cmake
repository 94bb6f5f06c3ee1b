# Sources of the module, of mesh-server (beside server_main.cpp), and of both; for the fuzzers, too.
set(BOTH blob.cpp channel.cpp describe.cpp descriptor.cpp half_rows.cpp lookout.cpp names.cpp outbox.cpp report.cpp sizes.cpp trace.cpp
    variable.cpp weights_index.cpp)
set(CLIENT activations.cpp answered_values.cpp belonging.cpp client_backend.cpp client_buffer.cpp client_copies.cpp client_device.cpp client_graph.cpp client_sums.cpp connection.cpp connection_pairs.cpp context_check.cpp
    owed_answers.cpp head_weights.cpp host.cpp mapped_region.cpp read_ahead.cpp set_aside.cpp watch.cpp)
set(SERVER neighbour_arrivals.cpp buffers.cpp choice.cpp executor.cpp executor_loads.cpp executor_pairs.cpp flights.cpp graphs.cpp guard.cpp large_pages.cpp layout.cpp libcrypto.cpp local_weights.cpp
    neighbours.cpp operations.cpp progress.cpp recent_writes.cpp release.cpp sealing.cpp server_options.cpp session.cpp
    shapes_attention.cpp shapes_elements.cpp shapes_matrices.cpp shapes_recurrent.cpp sums.cpp welcome.cpp
    device_list.cpp device_speed.cpp device_trial.cpp trial_graph.cpp trial_operations.cpp trial_words.cpp zero_memory.cpp)
